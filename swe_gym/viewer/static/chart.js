"use strict";
// Charts, drawn by uPlot in the colours of the page.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The index of the point nearest to the cursor: in joined data, each x has points of some series only. */
function nearestPoint(plot, series, index) {
  const values = plot.data[series];
  for (let step = 0; step < values.length; step++) {
    if (values[index - step] != null) return index - step;
    if (values[index + step] != null) return index + step;
  }
  return index;
}

/**
 * A chart as wide as its place. Its uPlot object is `box.plot`.
 * x, y: {label, values: numbers to words, range: as in uPlot, splits: as in uPlot}; series and bands: as in uPlot.
 */
function chart(label, { data, series, x, y, bands = [] }) {
  const height = 240;
  const box = el("div", { class: "chart idle" }); // the legend has values once the pointer is in the chart
  const axis = (of) => ({
    label: of.label,
    labelSize: 20,
    labelFont: "12px system-ui, sans-serif",
    font: "12px system-ui, sans-serif",
    stroke: () => colour("dim"),
    grid: { stroke: () => colour("line"), width: 1 },
    ticks: { show: false },
    ...(of.splits && { splits: of.splits }),
    ...(of.values && { values: (plot, all) => all.map(of.values) }),
  });
  const options = {
    width: 440,
    height,
    scales: { x: { time: false, range: x.range }, y: { range: y.range } },
    axes: [{ ...axis(x), size: 30 }, { ...axis(y), size: 52 }],
    series: [{ label: x.label, value: (plot, value) => (value == null ? "–" : x.words ? x.words(value) : `${value}`) }, ...series],
    bands,
    cursor: { dataIdx: nearestPoint, points: { show: false } },
    hooks: { setLegend: [(plot) => box.classList.toggle("idle", plot.cursor.left == null || plot.cursor.left < 0)] },
  };
  box.plot = new uPlot(options, data, box);
  box.plot.ctx.canvas.setAttribute("role", "img");
  box.plot.ctx.canvas.setAttribute("aria-label", label);
  const fit = () => box.clientWidth && box.plot.setSize({ width: Math.max(260, box.clientWidth), height });
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(box);
  return box;
}

/** Remove charts before their part of the page is replaced: uPlot keeps listeners of the window. */
const dropCharts = (within) => within.querySelectorAll(".chart").forEach((box) => box.plot.destroy());

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const box of document.querySelectorAll(".chart")) box.plot.redraw();
});

/** At most about eight round whole numbers between two ends. */
function wholeTicks(low, high) {
  const rough = Math.max(1, (high - low) / 8);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step) + 1 }, (_, i) => first + i * step);
}

/** Stacked bars: `parts` are [name, colour, values]. Each layer covers those below it down to the axis. */
function stackedBars(label, xs, parts, { words, ...axes }) {
  const sums = xs.map(() => 0);
  const layers = parts.map(([name, ink, values]) => ({
    name,
    ink,
    values,
    top: values.map((value, i) => (sums[i] += value)),
  }));
  layers.reverse();
  return chart(label, {
    ...axes,
    data: [xs, ...layers.map((layer) => layer.top)],
    series: layers.map(({ name, ink, values }) => ({
      label: name,
      fill: () => colour(ink),
      stroke: () => colour(ink),
      width: 0,
      paths: uPlot.paths.bars({ size: [0.85, 60] }),
      points: { show: false },
      value: (plot, top, series, index) => (index == null ? "–" : words(values[index])),
    })),
  });
}

function dataTable(heads, rows) {
  const line = (tag, cells) => el("tr", {}, cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  return el("table", {}, el("thead", {}, line("th", heads)), el("tbody", {}, rows.map((row) => line("td", row))));
}
