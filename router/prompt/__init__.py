"""Request body -> what routing needs to know, without building Python objects for the prompt.

`shapes` says which fields are read, `canonical` turns them into prefix bytes, `reader` puts both together.
"""

from router.prompt.reader import Form, Prompt, read_prompt
from router.prompt.shapes import MEDIA_BYTES
from router.prompt.usage import with_usage

__all__ = ["MEDIA_BYTES", "Form", "Prompt", "read_prompt", "with_usage"]
