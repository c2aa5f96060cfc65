"""What of /proc and /sys a sandbox must not read, and what it must not change, on every backend that can mount.

The masked files tell of the machine, and so of other sandboxes: keys, memory maps, counts of open files. The others are
read-only because the kernel keeps one mode and owner of them for all: whoever may change these can leave a message.
"""

MASKED = """
/proc/1/autogroup /proc/acpi /proc/allocinfo /proc/asound /proc/buddyinfo /proc/interrupts /proc/kcore /proc/key-users
/proc/keys /proc/kmsg /proc/kpagecgroup /proc/kpagecount /proc/kpageflags /proc/latency_stats /proc/pagetypeinfo
/proc/pressure /proc/sched_debug /proc/schedstat /proc/scsi /proc/slabinfo /proc/softirqs /proc/sys/fs/aio-nr
/proc/sys/fs/dentry-state /proc/sys/fs/file-nr /proc/sys/fs/inode-nr /proc/sys/fs/inode-state /proc/sys/kernel/pty/nr
/proc/sysrq-trigger /proc/timer_list /proc/timer_stats /proc/vmallocinfo /proc/zoneinfo /sys/devices/virtual/powercap
/sys/firmware
""".split()

READ_ONLY = """
bootconfig bus cgroups cmdline config.gz consoles cpu cpuinfo crypto devices diskstats dma driver dynamic_debug
execdomains fb filesystems fs iomem ioports irq kallsyms loadavg lockdep lockdep_chains lockdep_stats lock_stat locks
mdstat meminfo misc modules mtrr partitions stat swaps sys sysvipc tty uptime version version_signature vmstat xen
""".split()
"""Names in /proc, as far as kernels have them."""
