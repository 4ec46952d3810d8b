"""Finds the chat templates in a model's folder, in the places where families put them."""

from pathlib import Path

from engine.errors import ModelFileError
from engine.text.tokenizer import read_json


def find_templates(folder: Path) -> tuple[Path, dict[str, str]] | None:
    """The file that holds the templates, and the templates by name; None when none does.

    ``chat_template.jinja`` comes first, then ``chat_template.json``, then
    ``tokenizer_config.json``. A lone template is named ``default``.

    Raises:
        ModelFileError: a file is broken.
    """
    path = folder / "chat_template.jinja"
    try:
        return path, {"default": path.read_text(encoding="utf-8-sig")}
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(path, f"is not readable text: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        sources = _named_sources(read_json(path).get("chat_template"), path)
        if sources:
            return path, sources
    return None


def _named_sources(value: object, path: Path) -> dict[str, str]:
    match value:
        case None | "" | []:
            return {}
        case str():
            return {"default": value}
        case list():
            pass
        case _:
            raise ModelFileError(path, "chat_template is neither a text nor a list")
    sources: dict[str, str] = {}
    for entry in value:
        match entry:
            case {"name": str(name), "template": str(template)}:
                sources[name] = template
            case _:
                raise ModelFileError(path, "chat_template has an entry without name or template")
    return sources
