"""The features of a model: turns rows of data into the inputs of its ONNX file.

Millstream writes this file when it exports a model (`millstream export --transforms`). It holds the features of the
job with their vocabularies, boundaries and statistics, and needs only the standard library (Python 3.9 or later):

    import onnxruntime
    from features import transform

    session = onnxruntime.InferenceSession("model.onnx")
    scores = session.run(["score"], transform([{"age": 31, "colour": "red", "tags": [3, 7]}]))[0]

A row maps columns to values, like a record of JSON lines; a column that it lacks is absent. `transform` returns the
arrays of NumPy that onnxruntime expects, and `transform_to_lists` the same values as nested lists, without NumPy.

What is exact: a row has the ids and numbers that `millstream predict` computes from the same row in JSON lines, bit
for bit, and a value that `predict` refuses raises a `FeatureError`. That includes the hashes (FarmHash's Fingerprint64,
as in tf.strings.to_hash_bucket_fast and tf.sparse.cross_hashed) and the text of numbers that are hashed. Like `predict`,
this reads a value in the type in which the training data stored the column, and as text if that is unknown. Beyond
JSON, values may be `bytes`, NaN, infinities, `decimal.Decimal`, dates and datetimes, and scalars and arrays of NumPy.

What differs: text of dates and timestamps must be ISO 8601 (`2026-11-21`, `2026/11/21`, `2026-11-21T12:38:00.5Z`) or
whole seconds since 1970; `predict` accepts more spellings. Text is never split: a list that CSV writes as `3|7` must
arrive as `["3", "7"]`. Filters of the job are not applied, and columns that the model does not read are ignored.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import fractions
import json
import math
import re
import struct
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

__all__ = ["COLUMNS", "JOB", "STEP", "FeatureError", "fingerprint64", "transform", "transform_to_lists"]

# Written by the export: the job, its features, the values that mean "missing" and the types of the columns.
_DESCRIPTION: Dict[str, Any] = json.loads(
    r'''
{"job": "", "step": 0, "features": [], "missing": [], "types": {}}
'''
)

Scalar = Union[None, bool, int, float, str, bytes, decimal.Decimal, datetime.date]
"""A value: `datetime.datetime` is a `datetime.date`, and scalars of NumPy are accepted too."""

Value = Union[Scalar, Sequence[Scalar]]
"""A value of a row: a scalar, or the list of a multi-valued column or vector."""

Row = Mapping[str, Value]

# The value of a column in its stored type: text is bytes, a date or timestamp the number of its ticks.
_Element = Union[None, bool, int, float, bytes]

JOB: str = _DESCRIPTION["job"]
"""The name of the job that trained the model."""

STEP: int = _DESCRIPTION["step"]
"""The training step of the model."""


class FeatureError(ValueError):
    """A value that the model cannot read. `row` is the index of its row."""

    def __init__(self, row: int, feature: str, column: str, message: str) -> None:
        super().__init__(f"row {row}, feature `{feature}`, column `{column}`: {message}")
        self.row = row
        self.feature = feature
        self.column = column


def transform(rows: Iterable[Row]) -> Dict[str, Any]:
    """The inputs of the ONNX model for `rows`, as arrays of NumPy.

    Numbers are `float64 [rows, size]`, with NaN for an absent one; ids `int64 [rows, 1]`. The ids of a multi-valued
    feature are `int64 [rows, N]`, padded with -1, and their weights `float32 [rows, N]`.

    Raises a `FeatureError` for a value that `millstream predict` refuses.
    """
    import numpy  # onnxruntime requires it; `transform_to_lists` does not.

    rows = list(rows)
    kinds = {name: kind for feature in _FEATURES for name, kind in feature.inputs.items()}
    arrays = {}
    for name, values in transform_to_lists(rows).items():
        width = len(values[0]) if values else _WIDTHS.get(name, 0)
        arrays[name] = numpy.array(values, dtype=kinds[name]).reshape(len(rows), width)
    return arrays


def transform_to_lists(rows: Iterable[Row]) -> Dict[str, List[List[Any]]]:
    """Like `transform`, as nested lists: one list per row."""
    rows = list(rows)
    for at, row in enumerate(rows):
        if COLUMNS and not any(column in row for column in COLUMNS):
            raise ValueError(f"row {at}: has none of the columns {', '.join(COLUMNS)}")
    inputs: Dict[str, List[List[Any]]] = {}
    for feature in _FEATURES:
        inputs.update(feature.transform(rows))
    return inputs


class _Problem(Exception):
    """Why a value is unusable, in a column other than the feature's first if there is one."""

    def __init__(self, message: str, column: Optional[str] = None) -> None:
        super().__init__(message)
        self.column = column


# Text and numbers, as Rust reads and writes them.

_SPACES = b" \t\n\x0c\r"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:inf|infinity|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.IGNORECASE | re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})|([0-9]{4})/([0-9]{2})/([0-9]{2})")
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:\.([0-9]{1,9}))?(?:(Z)|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_FLAGS = {"true": True, "t": True, "yes": True, "y": True, "1": True}
_FLAGS.update({"false": False, "f": False, "no": False, "n": False, "0": False})

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_SECONDS_PER_DAY = 86_400
# Of 400 years.
_DAYS_PER_CYCLE = 146_097
# The years of chrono, in which `predict` reads timestamps: -262143 to 262142.
_LEAST_SECOND, _MOST_SECOND = -8_334_601_228_800, 8_210_266_876_799
_TICKS_PER_SECOND = {"second": 1, "millisecond": 10**3, "microsecond": 10**6, "nanosecond": 10**9}


def _parse_integer(text: str) -> Optional[int]:
    """A whole number of at most 128 bits."""
    if not _INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 39:
        return None
    return -int(digits or "0") if text.startswith("-") else int(digits or "0")


def _parse_number(text: str) -> Optional[float]:
    return float(text) if _NUMBER.fullmatch(text) else None


def _to_float32(number: float) -> float:
    """The nearest number that 32 bits hold."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _parse_float32(text: str) -> Optional[float]:
    """The nearest 32-bit number to a decimal text, rounded once."""
    number = _parse_number(text)
    if number is None or not math.isfinite(number):
        # A text beyond the range of 64 bits is beyond that of 32 bits.
        return number
    rounded = _to_float32(number)
    if rounded == number:
        return rounded
    # The text was rounded to 64 bits first, which matters only exactly between two 32-bit numbers.
    lower, upper = _around(number)
    if number - lower != upper - number:
        return rounded
    exact, half = decimal.Decimal(text), decimal.Decimal(number)
    return rounded if exact == half else _to_float32(upper if exact > half else lower)


def _around(number: float) -> Tuple[float, float]:
    """The 32-bit numbers below and above a number that is none; 2^128 stands for the first that overflows."""
    bits = struct.unpack("<I", struct.pack("<f", min(abs(number), 3.4028234663852886e38)))[0]
    nearest = _of_bits(bits)
    lower, upper = (bits, bits + 1) if nearest < abs(number) else (bits - 1, bits)
    pair = (_of_bits(lower), _of_bits(upper))
    return pair if number > 0 else (-pair[1], -pair[0])


def _of_bits(bits: int) -> float:
    return 2.0**128 if bits == 0x7F80_0000 else struct.unpack("<f", struct.pack("<I", bits))[0]


def _shortest(number: float, is_float32: bool) -> Tuple[str, int]:
    """The fewest digits that read as the same number, and the power of ten of the first; finite and above 0.

    Of several, the nearest to the number; the upper one if two are equally near, unlike in Python.
    """
    text = repr(number)
    if is_float32:
        text = next(text for text in _candidates(number) if _parse_float32(text) == number)
    _, found, power = decimal.Decimal(text).as_tuple()
    digits, power = "".join(map(str, found)).rstrip("0"), int(power) + len(found)
    unit = fractions.Fraction(10) ** (power - len(digits))
    if fractions.Fraction(number) - int(digits) * unit == unit / 2:
        upper = f"{int(digits) + 1}e{power - len(digits)}"
        if (_parse_float32 if is_float32 else float)(upper) == number:
            digits = str(int(digits) + 1)
    return digits, power - 1


def _candidates(number: float) -> Iterator[str]:
    """Decimal texts of more and more digits."""
    for places in range(9):
        text = f"{number:.{places}e}"
        yield text
        # Below a power of two numbers are closer together: the digits may have to be rounded up.
        head, _, exponent = text.partition("e")
        yield f"{int(head.replace('.', '')) + 1}e{int(exponent) - places}"


def _float_text(number: float, is_float32: bool) -> bytes:
    """The shortest text that reads as the same number, in positional notation: `1.5`, and `2` for 2.0."""
    if not math.isfinite(number):
        return b"NaN" if math.isnan(number) else (b"inf" if number > 0 else b"-inf")
    if number == 0:
        return b"0"
    digits, power = _shortest(abs(number), is_float32)
    if power < 0:
        text = "0." + "0" * (-power - 1) + digits
    else:
        digits = digits.ljust(power + 1, "0")
        text = digits[: power + 1] + ("." if len(digits) > power + 1 else "") + digits[power + 1 :]
    return (("-" if number < 0 else "") + text).encode()


def _json_text(number: float) -> str:
    """The text of a number that a record of JSON lines holds, which `predict` writes as 1.0, 0.00001 or 1e-6."""
    if not math.isfinite(number):
        return _float_text(number, False).decode()
    mantissa, has_exponent, exponent = repr(number).partition("e")
    if not has_exponent:
        return mantissa
    if int(exponent) == -5:
        sign = "-" if number < 0 else ""
        return f"{sign}0.0000{mantissa.replace('.', '').lstrip('-')}"
    return f"{mantissa}e{int(exponent):+d}"


def _text_of(value: Scalar) -> str:
    """A scalar as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _Problem("is not UTF-8") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # As JSON, in which larger ones are floats.
        return str(value) if -(2**63) <= value < 2**64 else _json_text(_float_of(value))
    if isinstance(value, float):
        return _json_text(value)
    if isinstance(value, decimal.Decimal):
        text = f"{value:f}" if value.is_finite() else str(value)
        return (text.rstrip("0").rstrip(".") or "0") if "." in text else text
    if isinstance(value, datetime.datetime):
        seconds, nanoseconds = _moment_of(value)
        return _timestamp_text(seconds * 10**9 + nanoseconds, 10**9, value.tzinfo is not None)
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise _Problem(f"expected a value, found {type(value).__name__}")


def _float_of(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _Problem(f"{_shown(value)} is too large") from None


def _whole(text: str) -> Optional[int]:
    """A whole number of at most 64 bits, which may be written as a float, such as `3.0`."""
    integer = _parse_integer(text)
    if integer is not None and -(2**63) <= integer < 2**64:
        return integer
    number = _parse_number(text)
    is_exact = number is not None and abs(number) < 2**53 and number == math.floor(number)
    return int(number) if is_exact and number is not None else None


# Dates and timestamps.


def _day_of(year: int, month: int, day: int) -> Optional[int]:
    """Days since 1970-01-01; `None` if there is no such day."""
    if not 1 <= month <= 12:
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    length = (29 if is_leap else 28) if month == 2 else (30 if month in (4, 6, 9, 11) else 31)
    if not 1 <= day <= length:
        return None
    # Python has no year 0; the calendar repeats after 400 years.
    cycles = 0 if year > 0 else 1
    return datetime.date(year + 400 * cycles, month, day).toordinal() - _DAYS_PER_CYCLE * cycles - _EPOCH


def _parse_day(text: str) -> Optional[int]:
    found = _DATE.fullmatch(text)
    return _day_of(*(int(part) for part in found.groups() if part is not None)) if found else None


def _parse_moment(text: str) -> Optional[Tuple[int, int]]:
    """Seconds since 1970 in UTC, and nanoseconds."""
    seconds, day = _parse_integer(text), _parse_day(text)
    if seconds is not None:
        return (seconds, 0) if _LEAST_SECOND <= seconds <= _MOST_SECOND else None
    if day is not None:
        return day * _SECONDS_PER_DAY, 0
    found = _MOMENT.fullmatch(text)
    if not found:
        return None
    date, hour, minute, second, fraction, _, sign, zone_hour, zone_minute = found.groups()
    day = _parse_day(date)
    if day is None or int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        return None
    if int(zone_hour or 0) > 23 or int(zone_minute or 0) > 59:
        return None
    offset = int(zone_hour or 0) * 3600 + int(zone_minute or 0) * 60
    seconds = day * _SECONDS_PER_DAY + int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return seconds - (-offset if sign == "-" else offset), int((fraction or "").ljust(9, "0"))


def _moment_of(value: datetime.date) -> Tuple[int, int]:
    """As `_parse_moment`. A datetime without a time zone is in UTC."""
    if not isinstance(value, datetime.datetime):
        return (value.toordinal() - _EPOCH) * _SECONDS_PER_DAY, 0
    of_day = value.hour * 3600 + value.minute * 60 + value.second
    offset = value.utcoffset() or datetime.timedelta()
    seconds = (value.toordinal() - _EPOCH - offset.days) * _SECONDS_PER_DAY + of_day - offset.seconds
    nanoseconds = (value.microsecond - offset.microseconds) * 1000
    return seconds + nanoseconds // 10**9, nanoseconds % 10**9


def _date_text(days: int) -> str:
    """A date of the proleptic Gregorian calendar; years beyond 0 to 9999 have a sign."""
    cycles, of_cycle = divmod(days + _EPOCH - 1, _DAYS_PER_CYCLE)
    date = datetime.date.fromordinal(of_cycle + 1)
    year = date.year + 400 * cycles
    return (f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}") + f"-{date.month:02d}-{date.day:02d}"


def _timestamp_text(ticks: int, per_second: int, is_utc: bool) -> str:
    seconds, fraction = divmod(ticks, per_second)
    days, of_day = divmod(seconds, _SECONDS_PER_DAY)
    text = f"{_date_text(days)}T{of_day // 3600:02d}:{of_day // 60 % 60:02d}:{of_day % 60:02d}"
    if fraction:
        text += "." + str(fraction).rjust(len(str(per_second)) - 1, "0").rstrip("0")
    return text + ("Z" if is_utc else "")


# Columns: values in the type in which the training data stored them.


class _Missing:
    """The values that mean "missing", besides None: numbers are compared by value, text without spaces around it."""

    def __init__(self, values: List[str]) -> None:
        self.exact = frozenset(value.encode() for value in values)
        trimmed = [value.encode().strip(_SPACES) for value in values]
        self.texts = frozenset(trimmed)
        numbers = [_parse_number(value.decode()) for value in trimmed]
        self.floats = [number for number in numbers if number is not None]
        whole = {_parse_integer(value.decode()) for value in trimmed}
        whole.update(int(number) for number in self.floats if abs(number) <= 2**53 and number == math.floor(number))
        self.integers = frozenset(whole - {None})

    def has_float(self, value: float, is_float32: bool) -> bool:
        for number in self.floats:
            if (_to_float32(number) if is_float32 else number) == value or (math.isnan(number) and math.isnan(value)):
                return True
        return False


class _Column:
    """A column: its name, and the type in which the training data stored it."""

    def __init__(self, name: str, stored: Union[str, Dict[str, Any]]) -> None:
        self.name = name
        self.kind = stored if isinstance(stored, str) else "timestamp"
        self.is_float32 = stored == "float32"
        if not isinstance(stored, str):
            self.per_second = _TICKS_PER_SECOND[stored["timestamp"]["unit"]]
            self.is_utc = stored["timestamp"]["is_utc"]

    def elements(self, row: Row) -> List[_Element]:
        """The values of a row; None for an absent one in a list."""
        value: Any = row.get(self.name)
        if hasattr(value, "tolist"):
            value = value.tolist()
        if isinstance(value, (list, tuple)):
            return [self._stored(element) for element in value]
        is_listed = isinstance(value, (str, bytes)) and _encoded(value) in _MISSING.exact
        return [] if value is None or is_listed else [self._stored(value)]

    def single(self, row: Row) -> _Element:
        """The value of a row, for a feature with one."""
        elements = self.elements(row)
        if len(elements) > 1:
            message = f"expected one value, found {len(elements)}"
            raise _Problem(f"{message}; the feature is not multi-valued", self.name)
        return elements[0] if elements else None

    def _stored(self, value: Any) -> _Element:
        """A scalar in the column's type."""
        if hasattr(value, "tolist"):
            value = value.tolist()
        try:
            return None if value is None else self._convert(value)
        except _Problem as problem:
            raise _Problem(str(problem), self.name) from None

    def _convert(self, value: Any) -> _Element:
        if self.kind == "text":
            return value if isinstance(value, bytes) else _encoded(_text_of(value))
        if self.kind in ("date", "timestamp"):
            return self._ticks(value)
        text = _text_of(value)
        stored: _Element
        if self.kind in ("integer", "unsigned"):
            least, most = (-(2**63), 2**63 - 1) if self.kind == "integer" else (0, 2**64 - 1)
            stored, expected = _whole(text), "an integer" if least else "an integer of at least 0"
            if stored is not None and not least <= stored <= most:
                stored = None
        elif self.kind == "boolean":
            stored, expected = _FLAGS.get(text.lower()), "true or false"
        else:
            stored, expected = (_parse_float32 if self.is_float32 else _parse_number)(text), "a number"
        if stored is None:
            raise _Problem(f"{_shown(text)} is not {expected}")
        return stored

    def _ticks(self, value: Any) -> int:
        """A date as days, or a timestamp in its unit."""
        if self.kind == "date" and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value.toordinal() - _EPOCH
        moment = _moment_of(value) if isinstance(value, datetime.date) else _parse_moment(_text_of(value))
        if moment is None:
            example = "a date such as 2026-11-21" if self.kind == "date" else "a timestamp such as 2026-11-21T12:38:00Z"
            raise _Problem(f"{_shown(value)} is not {example}")
        seconds, nanoseconds = moment
        if self.kind == "date":
            return seconds // _SECONDS_PER_DAY
        ticks = seconds * self.per_second + nanoseconds * self.per_second // 10**9
        if not -(2**63) <= ticks < 2**63:
            raise _Problem(f"{_shown(value)} does not fit into a timestamp")
        return ticks

    def number(self, element: _Element) -> Optional[float]:
        """A value as a number: None if it is absent, NaN if it is not a number."""
        if element is None:
            return None
        if isinstance(element, bool):
            return float(element)
        if isinstance(element, bytes):
            trimmed = element.strip(_SPACES)
            if trimmed in _MISSING.texts:
                return None
            if trimmed in (b"true", b"false"):
                return float(trimmed == b"true")
            try:
                number = _parse_number(trimmed.decode())
            except UnicodeDecodeError:
                number = None
            return math.nan if number is None else number
        if self.kind in ("integer", "unsigned"):
            return None if element in _MISSING.integers else float(element)
        number = float(element)
        if self.kind == "timestamp":
            number /= self.per_second
        return None if _MISSING.has_float(number, self.is_float32) else number

    def text(self, element: _Element) -> Optional[bytes]:
        """A value as text; None if it is absent."""
        if element is None:
            return None
        if isinstance(element, bool):
            return b"true" if element else b"false"
        if self.kind in ("integer", "unsigned"):
            return None if element in _MISSING.integers else str(element).encode()
        if isinstance(element, float):
            return None if _MISSING.has_float(element, self.is_float32) else _float_text(element, self.is_float32)
        if isinstance(element, int):
            is_date = self.kind == "date"
            text = _date_text(element) if is_date else _timestamp_text(element, self.per_second, self.is_utc)
            element = text.encode()
        return None if element.strip(_SPACES) in _MISSING.texts else element


def _encoded(value: Union[str, bytes]) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise _Problem("is not UTF-8") from None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else (value.decode(errors="replace") if isinstance(value, bytes) else str(value))
    return f"`{text[:40]}`" + ("..." if len(text) > 40 else "")


# Fingerprint64 (FarmHash), and its combination for crosses.

_MASK = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_CROSS_KEY = 0xDECAFCAFFE


def _rotate(value: int, bits: int) -> int:
    return (value >> bits | value << (64 - bits)) & _MASK


def _shift_mix(value: int) -> int:
    return value ^ value >> 47


def _hash_pair(u: int, v: int, mul: int) -> int:
    a = _shift_mix((u ^ v) * mul & _MASK)
    return _shift_mix((v ^ a) * mul & _MASK) * mul & _MASK


def _fetch(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + 8], "little")


def _fold_four(a: int, b: int, c: int, d: int, turned: int, base: int) -> Tuple[int, int]:
    u = _rotate(a + b & _MASK, 43) + _rotate(c, 30) + d & _MASK
    return u, base + _rotate(turned & _MASK, 18) + c & _MASK


def _weak_hash(text: bytes, at: int, a: int, b: int) -> Tuple[int, int]:
    w, x, y, z = struct.unpack_from("<4Q", text, at)
    a = a + w & _MASK
    b = _rotate(b + a + z & _MASK, 21)
    c = a
    a = a + x + y & _MASK
    b = b + _rotate(a, 44) & _MASK
    return a + z & _MASK, b + c & _MASK


def fingerprint64(text: bytes) -> int:
    """FarmHash's Fingerprint64, of which tf.strings.to_hash_bucket_fast takes the remainder."""
    length = len(text)
    mul = _K2 + 2 * length & _MASK
    if length > 64:
        return _longest(text)
    if length > 16:
        first = _fetch(text, 0) * (_K1 if length <= 32 else _K2) & _MASK
        b, c = _fetch(text, 8), _fetch(text, length - 8) * mul & _MASK
        d = _fetch(text, length - 16) * _K2 & _MASK
        u, v = _fold_four(first, b, c, d, b + _K2, first)
        if length <= 32:
            return _hash_pair(u, v, mul)
        z = _hash_pair(u, v, mul)
        e, f = _fetch(text, 16) * mul & _MASK, _fetch(text, 24)
        g = (u + _fetch(text, length - 32)) * mul & _MASK
        h = (z + _fetch(text, length - 24)) * mul & _MASK
        return _hash_pair(*_fold_four(e, f, g, h, f + first, e), mul)
    if length >= 8:
        a, b = _fetch(text, 0) + _K2 & _MASK, _fetch(text, length - 8)
        c = _rotate(b, 37) * mul + a & _MASK
        d = (_rotate(a, 25) + b) * mul & _MASK
        return _hash_pair(c, d, mul)
    if length >= 4:
        a, b = int.from_bytes(text[:4], "little"), int.from_bytes(text[-4:], "little")
        return _hash_pair(length + (a << 3), b, mul)
    if length:
        y, z = text[0] + (text[length >> 1] << 8), length + (text[-1] << 2)
        return _shift_mix(y * _K2 & _MASK ^ z * _K0 & _MASK) * _K2 & _MASK
    return _K2


def _longest(text: bytes) -> int:
    """More than 64 bytes."""
    y = 81 * _K1 + 113 & _MASK
    x = 81 * _K2 + _fetch(text, 0) & _MASK
    z = _shift_mix(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    last = len(text) - 1
    # All whole blocks but the one with the last byte; then the last 64 bytes.
    blocks = [(at, 1) for at in range(0, last // 64 * 64, 64)] + [(len(text) - 64, 9)]
    mul = _K1
    for at, factor in blocks:
        if factor == 9:
            mul = _K1 + ((z & 0xFF) << 1) & _MASK
            w = (w[0] + (last & 63) & _MASK, w[1])
            v = (v[0] + w[0] & _MASK, v[1])
            w = (w[0] + v[0] & _MASK, w[1])
        x = _rotate(x + y + v[0] + _fetch(text, at + 8) & _MASK, 37) * mul & _MASK
        y = _rotate(y + v[1] + _fetch(text, at + 48) & _MASK, 42) * mul & _MASK
        x ^= w[1] * factor & _MASK
        y = y + v[0] * factor + _fetch(text, at + 40) & _MASK
        z = _rotate(z + w[0] & _MASK, 33) * mul & _MASK
        v = _weak_hash(text, at, v[1] * mul & _MASK, x + w[0] & _MASK)
        w = _weak_hash(text, at + 32, z + w[1] & _MASK, y + _fetch(text, at + 16) & _MASK)
        z, x = x, z
    first = _hash_pair(v[0], w[0], mul) + _shift_mix(y) * _K0 + z & _MASK
    return _hash_pair(first, _hash_pair(v[1], w[1], mul) + x & _MASK, mul)


def _cat64(first: int, second: int) -> int:
    mul = 0xC6A4A7935BD1E995
    joined = (first ^ mul ^ _shift_mix(second * mul & _MASK) * mul & _MASK) * mul & _MASK
    return _shift_mix(_shift_mix(joined) * mul & _MASK)


# Scaling, to refuse numbers that it makes too large.

_POLYNOMIAL = (
    6.666666666666735e-1,
    3.999999999940942e-1,
    2.857142874366239e-1,
    2.2222198432149784e-1,
    1.818357216161805e-1,
    1.5313837699209373e-1,
    1.4798198605116586e-1,
)


def _signed_log1p(value: float) -> float:
    """sign(x) ln(1 + |x|), by the same operations as in training (fdlibm)."""
    x = abs(value)
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    bits = struct.unpack("<Q", struct.pack("<d", u))[0]
    k = (bits - 0x3FE6A09E667F3BCD & _MASK) >> 52
    f = struct.unpack("<d", struct.pack("<Q", bits - (k << 52) & _MASK))[0] - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    p1, p2, p3, p4, p5, p6, p7 = _POLYNOMIAL
    r = w * (p2 + w * (p4 + w * p6)) + z * (p1 + w * (p3 + w * (p5 + w * p7)))
    half = 0.5 * f * f
    log = k * 6.931471803691238e-1 - ((half - (s * (half + r) + (k * 1.9082149292705877e-10 + lost))) - f)
    return math.copysign(log, value)


# Features.


class _Feature:
    """A feature: the inputs of the model that it fills, with their types."""

    def __init__(self, described: Dict[str, Any]) -> None:
        self.name: str = described["name"]
        self.columns = [_Column(name, _DESCRIPTION["types"].get(name, "text")) for name in described["columns"]]
        self.column = self.columns[0]
        self.inputs = {self.name: "int64"}

    def transform(self, rows: List[Row]) -> Dict[str, List[List[Any]]]:
        """The values of its inputs: those of the first by default."""
        return {self.name: self.of_rows(rows, self.of_row)}

    def of_rows(self, rows: List[Row], of_row: Callable[[Row], Any]) -> List[Any]:
        """The results of `of_row`; its problems become errors with an address."""
        results = []
        for at, row in enumerate(rows):
            try:
                results.append(of_row(row))
            except _Problem as problem:
                raise FeatureError(at, self.name, problem.column or self.column.name, str(problem)) from None
        return results

    def of_row(self, row: Row) -> List[Any]:
        raise NotImplementedError


class _Numbers(_Feature):
    """A numeric feature or a vector: numbers as they are, since the model scales them; NaN for an absent one."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.inputs = {self.name: "float64"}
        self.size: Optional[int] = described.get("size")
        self.logarithm: bool = described.get("logarithm", False)
        self.shift: float = described.get("shift", 0.0)
        divisor = described.get("divisor", 1.0)
        self.divisor: float = math.inf if divisor is None else divisor
        self.may_be_absent: bool = described["missing"] != "error"

    def of_row(self, row: Row) -> List[float]:
        if self.size is None:
            return [self._number(self.column.single(row))]
        elements = self.column.elements(row)
        if not elements:
            return [self._number(None)] * self.size
        if len(elements) != self.size:
            raise _Problem(f"expected {self.size} numbers, the feature's `size`, found {len(elements)}")
        return [self._number(element) for element in elements]

    def _number(self, element: _Element) -> float:
        number = self.column.number(element)
        if number is None:
            if not self.may_be_absent:
                raise _Problem("a value is missing, and the feature has no default")
            return math.nan
        scaled = _signed_log1p(number) if self.logarithm else number
        if not math.isfinite(_to_float32((scaled - self.shift) / self.divisor)):
            raise _Problem(f"expected a number, found {_shown(self.column.text(element))}")
        return number


class _Ids(_Feature):
    """A feature with an id per value; the last id means an absent value."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.absent: int = described["cardinality"] - 1
        self.maximum: Optional[int] = described["maximum"]
        self.weights: Optional[_Column] = None
        if described["weights"] is not None:
            self.weights = _Column(described["weights"], _DESCRIPTION["types"].get(described["weights"], "text"))
            self.weights_input: str = described["weights_input"]
            self.inputs[self.weights_input] = "float32"

    def transform(self, rows: List[Row]) -> Dict[str, List[List[Any]]]:
        if self.maximum is None:
            return super().transform(rows)
        several = self.of_rows(rows, self.several)
        width = max((len(ids) for ids, _ in several), default=0)
        inputs: Dict[str, List[List[Any]]] = {self.name: [ids + [-1] * (width - len(ids)) for ids, _ in several]}
        if self.weights is not None:
            inputs[self.weights_input] = [weights + [0.0] * (width - len(weights)) for _, weights in several]
        return inputs

    def of_row(self, row: Row) -> List[int]:
        return [self._checked(self.column.single(row))]

    def several(self, row: Row) -> Tuple[List[int], List[float]]:
        """The ids of a row without absent values, at most `maximum`, and their weights."""
        assert self.maximum is not None
        elements = self.column.elements(row)
        numbers = [] if self.weights is None else self.weights.elements(row)
        if self.weights is not None and len(numbers) != len(elements):
            message = f"expected one weight per value of column `{self.column.name}` ({len(elements)})"
            raise _Problem(f"{message}, found {len(numbers)}", self.weights.name)
        ids: List[int] = []
        weights: List[float] = []
        for at, element in enumerate(elements):
            id = self._checked(element)
            if id == self.absent:
                continue
            if len(ids) == self.maximum:
                break
            if self.weights is not None:
                weights.append(self._weight(self.weights, numbers[at]))
            ids.append(id)
        return ids, weights

    @staticmethod
    def _weight(column: _Column, element: _Element) -> float:
        number = column.number(element)
        if number is None:
            raise _Problem("a value is missing", column.name)
        weight = _to_float32(number)
        if not math.isfinite(weight):
            raise _Problem(f"expected a finite weight, found {_shown(column.text(element))}", column.name)
        return weight

    def _checked(self, element: _Element) -> int:
        id = self.id(element)
        if id is None:
            raise _Problem(f"expected {self.expected()}, found {_shown(self.column.text(element))}")
        return id

    def id(self, element: _Element) -> Optional[int]:
        """The id of a value; None if it has none."""
        raise NotImplementedError

    def expected(self) -> str:
        return "a number"


class _Bucketized(_Ids):
    """The number of boundaries at or below the value."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.boundaries = _boundaries(self.column, described["boundaries"])

    def id(self, element: _Element) -> Optional[int]:
        number = self.column.number(element)
        if number is None:
            return self.absent
        return None if math.isnan(number) else bisect.bisect_right(self.boundaries, number)


def _boundaries(column: _Column, boundaries: List[float]) -> List[float]:
    """In the precision of the column."""
    return [_to_float32(boundary) if column.is_float32 else float(boundary) for boundary in boundaries]


class _Vocabulary(_Ids):
    """The index in a list of terms, or one of the buckets after it."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        terms = [bytes.fromhex(term["hex"]) if isinstance(term, dict) else term.encode() for term in described["terms"]]
        self.ids = {term: id for id, term in enumerate(terms)}
        self.oov_buckets: int = described["oov_buckets"]

    def id(self, element: _Element) -> Optional[int]:
        text = self.column.text(element)
        if text is None:
            return self.absent
        known = self.ids.get(text)
        return len(self.ids) + fingerprint64(text) % self.oov_buckets if known is None else known


class _Hashed(_Ids):
    """The fingerprint of the value, modulo the number of buckets."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.buckets: int = described["buckets"]

    def id(self, element: _Element) -> Optional[int]:
        text = self.column.text(element)
        return self.absent if text is None else fingerprint64(text) % self.buckets


class _Identity(_Ids):
    """The value itself."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.buckets: int = described["buckets"]
        self.is_missing_beyond: bool = described["out_of_range"] == "missing"

    def id(self, element: _Element) -> Optional[int]:
        number = self.column.number(element)
        if number is None:
            return self.absent
        if not math.isfinite(number) or number != math.floor(number):
            return None
        if 0 <= number < self.buckets:
            return int(number)
        return self.absent if self.is_missing_beyond else None

    def expected(self) -> str:
        return f"a whole number from 0 to {self.buckets - 1}"


class _Crossed(_Ids):
    """The combined fingerprint of a value of each column, modulo the number of buckets."""

    def __init__(self, described: Dict[str, Any]) -> None:
        super().__init__(described)
        self.buckets: int = described["buckets"]
        boundaries = described["boundaries"] or [[] for _ in self.columns]
        self.boundaries = [_boundaries(*pair) for pair in zip(self.columns, boundaries)]

    def of_row(self, row: Row) -> List[int]:
        crossed: Optional[int] = _CROSS_KEY
        for part, column in enumerate(self.columns):
            fingerprint = self._fingerprint(part, column.single(row))
            crossed = None if crossed is None or fingerprint is None else _cat64(crossed, fingerprint)
        return [self.absent if crossed is None else crossed % self.buckets]

    def several(self, row: Row) -> Tuple[List[int], List[float]]:
        """Every combination of a value of each column, of which the last varies fastest."""
        assert self.maximum is not None
        parts = []
        for part, column in enumerate(self.columns):
            found = [self._fingerprint(part, element) for element in column.elements(row)]
            parts.append([fingerprint for fingerprint in found if fingerprint is not None])
        ids: List[int] = []
        if all(parts):
            self._extend(parts, _CROSS_KEY, ids, self.maximum)
        return ids, []

    def _extend(self, parts: List[List[int]], crossed: int, ids: List[int], maximum: int) -> None:
        if not parts:
            ids.append(crossed % self.buckets)
            return
        for fingerprint in parts[0]:
            if len(ids) == maximum:
                return
            self._extend(parts[1:], _cat64(crossed, fingerprint), ids, maximum)

    def _fingerprint(self, part: int, element: _Element) -> Optional[int]:
        column, boundaries = self.columns[part], self.boundaries[part]
        if not boundaries:
            text = column.text(element)
            return None if text is None else fingerprint64(text)
        number = column.number(element)
        if number is None:
            return None
        if math.isnan(number):
            raise _Problem(f"expected a number, found {_shown(column.text(element))}", column.name)
        return fingerprint64(str(bisect.bisect_right(boundaries, number)).encode())


_KINDS: Dict[str, Callable[[Dict[str, Any]], _Feature]] = {
    "numeric": _Numbers,
    "vector": _Numbers,
    "bucketized": _Bucketized,
    "vocabulary": _Vocabulary,
    "hashed": _Hashed,
    "identity": _Identity,
    "crossed": _Crossed,
}
_MISSING = _Missing(_DESCRIPTION["missing"])
_FEATURES = [_KINDS[described["kind"]](described) for described in _DESCRIPTION["features"]]
# The second dimension of inputs that have one without rows.
_WIDTHS = {
    feature.name: getattr(feature, "size", None) or 1
    for feature in _FEATURES
    if not (isinstance(feature, _Ids) and feature.maximum is not None)
}


def _columns() -> List[str]:
    found = [column.name for feature in _FEATURES for column in feature.columns]
    found += [feature.weights.name for feature in _FEATURES if isinstance(feature, _Ids) and feature.weights is not None]
    return list(dict.fromkeys(found))


COLUMNS: List[str] = _columns()
"""The columns of the rows, which the model reads."""
