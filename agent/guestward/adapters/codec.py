"""Values of the model as JSON and back, driven by their type hints.

A field that has its default is left out, and a field that is missing gets its default: that keeps the text small and lets a later
version add fields. What the type hints do not allow is refused: unknown keys, missing fields, wrong types, numbers that are not finite.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NoReturn, TypeVar, Union, cast

from guestward.model.guest import GuestId
from guestward.model.task import bounded

T = TypeVar("T")
_Decoder = Callable[[object], Any]
_Encoder = Callable[[Any], object]
_MISSING = dataclasses.MISSING


def dumps(value: object) -> str:
    """One line of JSON, ASCII only. Raises ValueError for what the codec does not know."""
    return json.dumps(encode(value), separators=(",", ":"), allow_nan=False)


def loads(kind: type[T], text: str | bytes) -> T:
    """Read what `dumps` wrote. Raises ValueError, and nothing else, for anything that is not a `kind`."""
    if not isinstance(text, (str, bytes)):
        raise ValueError("not a text")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return decode(kind, data)


def encode(value: object) -> object:
    """What `json.dumps` takes. Raises ValueError for what the codec does not know."""
    kind: Any = type(value)
    return _encoder(kind)(value)


def decode(kind: type[T], data: object) -> T:
    """Build a `kind` from what `json.loads` gave. Raises ValueError with the place where it does not fit."""
    hint: Any = kind
    return cast("T", _decoder(hint)(data))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


# Encoding goes by the type of the value.


@cache
def _encoder(kind: type) -> _Encoder:
    plain: dict[type, _Encoder] = {str: _same, int: _same, bool: _same, types.NoneType: _same, float: _finite, GuestId: str}
    if kind in plain:
        return plain[kind]
    if issubclass(kind, Enum):
        return _enum_value
    if dataclasses.is_dataclass(kind):
        return _dataclass_encoder(kind)
    if issubclass(kind, (tuple, list)):
        return lambda value: [encode(item) for item in value]
    if issubclass(kind, frozenset):
        return _encode_set
    if issubclass(kind, Mapping):
        return _encode_mapping
    raise ValueError(f"{kind.__name__} cannot be written down")


def _same(value: object) -> object:
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be written down")
    return value


def _enum_value(value: Enum) -> object:
    return value.value


def _encode_set(value: frozenset[Any]) -> object:
    return sorted((encode(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))


def _encode_mapping(value: Mapping[Any, Any]) -> object:
    found = {}
    for key, item in value.items():
        name = encode(key)
        if not isinstance(name, str):
            raise ValueError(f"{bounded(name, 40)} is no key for a mapping: keys are text")
        found[name] = encode(item)
    return found


def _dataclass_encoder(kind: type) -> _Encoder:
    names = tuple((field.name, field.default) for field in dataclasses.fields(kind))

    def encode_fields(value: object) -> object:
        found = {}
        for name, default in names:
            item = getattr(value, name)
            if item is default or (type(item) is type(default) and item == default):
                continue
            found[name] = encode(item)
        return found

    return encode_fields


# Decoding goes by the type hint.


@cache
def _decoder(hint: Any) -> _Decoder:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is not None:
        return _generic_decoder(hint, origin, args)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass_decoder(hint)
    raise ValueError(f"the codec does not know {hint}")


def _generic_decoder(hint: Any, origin: Any, args: tuple[Any, ...]) -> _Decoder:
    if origin is Union or origin is types.UnionType:
        return _union_decoder(args)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _sequence_decoder(_decoder(args[0]), tuple)
    if origin is frozenset:
        return _sequence_decoder(_decoder(args[0]), frozenset)
    if origin is tuple:
        return _pair_decoder(tuple(_decoder(arg) for arg in args))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_decoder(_decoder(args[0]), _decoder(args[1]))
    raise ValueError(f"the codec does not know {hint}")


def _wrong(data: object, wanted: str) -> NoReturn:
    raise ValueError(f"{bounded(data, 60)} where {wanted} was expected")


def _text(data: object) -> str:
    return data if isinstance(data, str) else _wrong(data, "text")


def _whole(data: object) -> int:
    return data if isinstance(data, int) and not isinstance(data, bool) else _wrong(data, "a whole number")


def _real(data: object) -> float:
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        _wrong(data, "a number")
    try:
        return _finite(float(data))
    except OverflowError:
        raise ValueError("a number is too large") from None


def _truth(data: object) -> bool:
    return data if isinstance(data, bool) else _wrong(data, "true or false")


def _nothing(data: object) -> None:
    return None if data is None else _wrong(data, "null")


def _guest_id(data: object) -> GuestId:
    return GuestId.parse(_text(data))


_SCALARS: dict[Any, _Decoder] = {
    str: _text,
    int: _whole,
    float: _real,
    bool: _truth,
    types.NoneType: _nothing,
    GuestId: _guest_id,
}


def _enum_decoder(kind: type[Enum]) -> _Decoder:
    members = {member.value: member for member in kind}

    def read(data: object) -> Enum:
        found = members.get(data) if isinstance(data, (str, int)) and not isinstance(data, bool) else None
        return found if found is not None else _wrong(data, f"a {kind.__name__}")

    return read


def _union_decoder(args: tuple[Any, ...]) -> _Decoder:
    """The first member that fits. For `X | None` the error is that of X."""
    wanted = tuple(_decoder(arg) for arg in args if arg is not types.NoneType)
    nullable = len(wanted) < len(args)

    def read(data: object) -> object:
        if data is None and nullable:
            return None
        for one in wanted[:-1]:
            try:
                return one(data)
            except ValueError:
                continue
        return wanted[-1](data)

    return read


def _sequence_decoder(item: _Decoder, build: Callable[[list[Any]], Any]) -> _Decoder:
    def read(data: object) -> Any:
        if not isinstance(data, list):
            _wrong(data, "a list")
        return build([item(one) for one in data])

    return read


def _pair_decoder(items: tuple[_Decoder, ...]) -> _Decoder:
    def read(data: object) -> Any:
        if not isinstance(data, list) or len(data) != len(items):
            _wrong(data, f"a list of {len(items)}")
        return tuple(item(one) for item, one in zip(items, data, strict=True))

    return read


def _mapping_decoder(key: _Decoder, item: _Decoder) -> _Decoder:
    def read(data: object) -> Any:
        if not isinstance(data, dict):
            _wrong(data, "an object")
        return {key(name): item(value) for name, value in data.items()}

    return read


def _dataclass_decoder(kind: type) -> _Decoder:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(kind)}
    needed = frozenset(f.name for f in dataclasses.fields(kind) if f.default is _MISSING and f.default_factory is _MISSING)

    def read(data: object) -> object:
        if not isinstance(data, dict):
            _wrong(data, f"a {kind.__name__}")
        if missing := needed - data.keys():
            raise ValueError(f"{kind.__name__}: {', '.join(sorted(missing))} missing")
        found = {}
        for name, value in data.items():
            if name not in fields:
                raise ValueError(f"{kind.__name__}: unknown key {bounded(name, 40)}")
            try:
                found[name] = fields[name](value)
            except ValueError as error:
                raise ValueError(f"{kind.__name__}.{name}: {error}") from None
        return kind(**found)

    return read
