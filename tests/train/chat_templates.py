"""Kinds of chat templates, modelled on those of real models."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_LIKE = (
    "<|begin|>{% for m in messages %}<|header|>{{ m.role }}<|endheader|>\n\n{{ m.content | trim }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|header|>assistant<|endheader|>\n\n{% endif %}"
)
FORGETFUL = (  # like Qwen3's: drops the thoughts of earlier turns
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRUCTURED = (  # like Qwen3.8's: takes thoughts from a field of their own, and keeps them
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "<think>\n{{ m.reasoning_content | default('') | trim }}\n</think>\n\n{% endif %}{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA_LIKE, "forgetful": FORGETFUL, "structured": STRUCTURED}
