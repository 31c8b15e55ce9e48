"""From the options of ``bench run`` to a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bench.errors import InputError, UnknownName
from bench.request import DEFAULT_MODELS, DEFAULT_SUITES, Request
from bench.specs import parse_settings

OF_REQUEST = ("model", "suite", *(field.name for field in fields(Request)))  # as click has them


def split_names(texts: tuple[str, ...], option: str = "--model") -> tuple[str, ...]:
    """Return the names of repeated options and comma lists; a spec with options stays whole.

    Raises:
        InputError: A text names nothing, or joins a spec with ':' to other names.
    """
    names: list[str] = []
    for text in texts:
        if ":" in text or "?" in text:
            _check_alone(text, option)
            names.append(text)
            continue
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise InputError(
                f"'{option} {text}' names nothing; expected names joined by commas, or leave the "
                "option out"
            )
        names += parts
    return tuple(names)


def _check_alone(text: str, option: str) -> None:
    """Refuse a comma where no spec has one: in its scheme, and in the name of a factory."""
    head = text.partition("?")[0]
    scheme, _, rest = head.partition(":")
    if "," in scheme or (scheme == "py" and "," in rest.rpartition(":")[2]):
        raise InputError(
            f"'{option} {text}' joins a spec that has ':' or '?' to another name; repeat {option} "
            "for each"
        )


def split_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a comma list."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(
            f"'--refine-steps {text}': expected whole numbers joined by commas, e.g. 0,1,10"
        ) from None


def read_config(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file: the long options, with underscores.

    Raises:
        InputError: The file cannot be read.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'--config {path}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"'--config {path}' is not TOML: {error}") from error


def build_request(options: dict[str, Any]) -> Request:
    """Return the request of parsed options."""
    return Request(
        models=split_names(options["model"]) or DEFAULT_MODELS,
        suites=split_names(options["suite"], "--suite") or DEFAULT_SUITES,
        dataset=options["dataset"],
        refine_steps=split_numbers(options["refine_steps"]),
        network=options["network"],
        checkpoint=options["checkpoint"],
        protocol=options["protocol"],
        limit=options["limit"],
        seed=options["seed"],
        settings=parse_settings(options["settings"]),
        data_root=options["data_root"],
        download=options["download"],
        trust=options["trust"],
    )


def request_of_run(path: Path) -> Request:
    """Return the request that a stored ``run.json`` holds.

    Raises:
        InputError: The file holds none.
    """
    try:
        plain = json.loads(json.loads(path.read_text())["request"])
        plain["models"], plain["suites"] = tuple(plain["models"]), tuple(plain["suites"])
        plain["refine_steps"] = tuple(plain["refine_steps"])
        return Request(**plain)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'--from {path}' holds no request ({error}); expected RUNS/<run id>/run.json"
        ) from error


def check_nothing_beside(ctx: click.Context, options: Mapping[str, Any]) -> None:
    """Refuse options of the request beside ``--from``, which names a whole one.

    Raises:
        InputError: There are some, on the command line or in the configuration file.
    """
    given = {
        p.opts[0]
        for p in ctx.command.params
        if p.name in OF_REQUEST and _on_command_line(ctx, p.name)
    }
    if options["config"] is not None:
        keys = {key.replace("_", "-") for key in read_config(options["config"])}
        given |= {p.opts[0] for p in ctx.command.params if p.name in OF_REQUEST} & {
            f"--{key}" for key in keys
        }
    if given:
        raise InputError(
            f"'--from {options['from_run']}' repeats a request as it was; leave out "
            f"{', '.join(sorted(given))}, or name all options instead of --from"
        )


def _on_command_line(ctx: click.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def apply_config(ctx: click.Context, options: dict[str, Any]) -> None:
    """Fill in what the command line leaves to its defaults from the configuration file."""
    names = {"settings": "set", "as_json": "json", "format_": "format"}
    known = {names.get(key, key): key for key in options if key not in ("config", "from_run")}
    for key, value in read_config(options["config"]).items():
        name = key.replace("-", "_")
        if name not in known:
            raise UnknownName(f"option in '{options['config']}'", key, known)
        target = known[name]
        if _on_command_line(ctx, target):
            continue
        if value == [] and target in ("model", "suite"):
            raise InputError(f"'{key} = []' in '{options['config']}' names nothing; leave it out")
        if target in ("model", "suite", "settings"):
            value = tuple(value) if isinstance(value, list) else (value,)
        elif target == "refine_steps":
            value = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        parameter = next(p for p in ctx.command.params if p.name == target)
        options[target] = parameter.type_cast_value(ctx, value)
