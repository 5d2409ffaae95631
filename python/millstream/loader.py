"""Iterating over the batches of a feed."""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import _native, daemon, host
from .feed import Feed

_TAILS = ("partial", "pad", "drop")

# How long a host that is about to end may take to free its address.
_CONNECT_SECONDS = 30.0

# The most characters of an error that the ranks of other machines receive.
_ERROR_LENGTH = 300

# By program: loaders that one rank makes for itself do not count for the others.
_numbers: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)


class Ragged(NamedTuple):
    """Any number of values per row: row `i` has `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Any
    values: Any


class Column(NamedTuple):
    """A column of the batches of a feed."""

    kind: str
    """`tensor`, `ragged` or `raw`."""
    dtype: str
    """The type of its values, such as `float32`."""
    shape: list[int]
    """The shape of a row of a tensor."""
    place: int
    """Its place among the columns."""


class Place(NamedTuple):
    """Where a batch is in its feed. It does not hold the batch's memory."""

    epoch: int
    number: int
    rows: int
    capacity: int
    last: bool
    position: _native.Position


class _Rank(NamedTuple):
    """A rank, as the others see it."""

    rank: int
    identity: str
    # How the other machines reach its host, as JSON, if it reads a shard.
    meeting: str | None
    # What it cannot do, if it has failed, and why.
    error: str | None = None


class Views(Mapping[str, Any]):
    """The columns of a batch in shared memory, by name. Arrays are made when they are asked for."""

    def __init__(self, native: _native.Batch, loader: Loader, padded: bool) -> None:
        self.native = native
        self._in_feed = loader._columns
        self._padded = padded
        self._array = loader._array
        self._made: dict[str, Any] = {}
        if loader._mask is not None:
            rows = native.rows
            self._made[loader._mask] = loader._batch.mask_of(rows, native.capacity if padded else rows)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Any:
        kind, _, _, place = self._in_feed[name]
        if kind == "raw":
            values = self.native.raw(place)
            return values + [b""] * (self.native.capacity - len(values) if self._padded else 0)
        offsets, values = self.native.column(place, self._padded)
        if offsets is None:
            return self._array(values)
        return Ragged(self._array(offsets), self._array(values))

    def __iter__(self) -> Iterator[str]:
        return iter({**self._in_feed, **self._made})

    def __len__(self) -> int:
        return len(self._in_feed.keys() | self._made.keys())


class Reader:
    """Takes the batches of a ring."""

    def __init__(self, ring: _native.Client | _native.Evaluation, loader: Loader, padded: bool) -> None:
        self._ring = ring
        self._loader = loader
        self._padded = padded

    def next(self) -> Batch | None:
        """The next batch; `None` after the last one. An exception loses none."""
        native = self._ring.next()
        if native is None:
            return None
        place = Place(native.epoch, native.number, native.rows, native.capacity, native.last, native.position)
        return self._loader._batch(Views(native, self._loader, self._padded), place, self._padded)

    def close(self) -> None:
        """Ends what it does in advance."""


class Batch(Mapping[str, Any]):
    """The columns of a batch, by name. Arrays are views of shared memory and keep it as long as they exist.

    Frameworks convert a batch by `type(batch)({name: convert(array), ..})`. The result has the columns, but no place in
    the feed.
    """

    def __init__(self, columns: Mapping[str, Any], place: Place | None = None, padded: bool = False) -> None:
        self._columns = columns
        self._place = place
        self._padded = padded

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def place(self) -> Place:
        """Where it is in the feed."""
        if self._place is None:
            raise RuntimeError(
                "this batch was made from the columns of another, as frameworks do to convert them: "
                "it has no place in a feed"
            )
        return self._place

    @property
    def rows(self) -> int:
        """Rows of this rank, without padding."""
        return self.place.rows

    @property
    def mask(self) -> Any:
        """Which rows are data: booleans, of which those at the end are false where `tail="pad"` has added rows."""
        return self.mask_of(self.rows, self.place.capacity if self._padded else self.rows)

    @staticmethod
    def mask_of(rows: int, length: int) -> Any:
        """The mask of a batch of `length` rows, of which the first `rows` are data."""
        import numpy

        return numpy.arange(length) < rows

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.place.epoch

    @property
    def number(self) -> int:
        """Its number within the epoch, from 0."""
        return self.place.number

    def state_dict(self) -> dict[str, Any]:
        """The place in the feed after this batch: for a checkpoint of a model that was trained on it.

        It is the same on all ranks, and consists of strings and numbers.
        """
        return json.loads(self.place.position.state())

    def __repr__(self) -> str:
        if self._place is None:
            return f"<millstream.Batch of {', '.join(self)}>"
        return f"<millstream.Batch {self.number} of epoch {self.epoch}: {self.rows} rows of {', '.join(self)}>"


class _OneThread(type(threading.RLock())):  # type: ignore[misc]
    """A lock for one thread at a time: others get an exception instead of waiting."""

    def __enter__(self) -> None:
        if not self.acquire(blocking=False):
            raise RuntimeError("another thread uses this loader: take batches in one thread at a time")


class Loader:
    """Attaches to a feed and iterates over it, one epoch at a time.

    `rank` and `world` are the number of this process and the number of all that train together; they default to the
    environment variables `RANK` and `WORLD_SIZE`. `local_world` is the number of those on this machine: by default
    `LOCAL_WORLD_SIZE` if `world` equals `WORLD_SIZE`, and otherwise all. A batch is dealt evenly to the ranks. Those of a machine
    read from one host, so nothing is fetched or decoded twice there. Every machine reads all data; see `identity`.

    With `shard`, every machine reads only its share of the training data. An epoch then ends when the machine with the most
    rows has no more, and its last batches have few rows or none on others, so `tail` is "pad". The machines connect to each
    other over TCP, once the ranks have exchanged their addresses: by PyTorch or JAX where these connect their processes, and
    otherwise by `gather`, a function that takes a string and returns those of all ranks, such as `allgather` of mpi4py. The
    environment variables `MILLSTREAM_SHARD_PORTS` and `MILLSTREAM_SHARD_ADDRESS` set at which ports and address this one
    is reached.

    The host is the daemon of this machine, if one listens; otherwise a process that the first rank starts. `socket` is the
    path of the daemon's socket for feeds, or "none" for a process; see `millstream.daemon`.

    `tail` says what becomes of a last batch with fewer rows: "partial" delivers it, "pad" adds empty rows
    (`Batch.mask`), and "drop" drops it. Several ranks need one of the latter, because all must take equal steps.

    `mask` names one more column, the mask of the batch: for frameworks that pass on columns alone.

    `load_state_dict` resumes after the batch whose `state_dict` it was. A loop that is left by `break` does not end the epoch:
    the next one continues it. `run` names the program; it is only needed when the ranks of several programs on this machine
    have the same master address.
    """

    _batch = Batch

    def __init__(
        self,
        feed: Feed,
        *,
        rank: int | None = None,
        world: int | None = None,
        local_world: int | None = None,
        tail: str | None = None,
        mask: str | None = None,
        shard: bool = False,
        gather: Callable[[str], Sequence[str]] | None = None,
        run: str | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        self._rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self._world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
        if local_world is None:
            is_of_launcher = str(self._world) == os.environ.get("WORLD_SIZE")
            local_world = int(os.environ.get("LOCAL_WORLD_SIZE", self._world)) if is_of_launcher else self._world
        self._local_world = local_world
        if not 0 <= self._rank < self._world:
            raise ValueError(f"rank {self._rank} of {self._world}: ranks are counted from 0")
        if not 1 <= local_world <= self._world:
            raise ValueError(f"local_world={local_world}: expected from 1 to {self._world}, the number of all ranks")
        if tail is None:
            if self._world > 1:
                raise ValueError(
                    f'{self._world} ranks need tail="pad" (then use batch.mask) or tail="drop": '
                    "a short last batch would give them different numbers of rows"
                )
            tail = "partial"
        if tail not in _TAILS:
            raise ValueError(f"tail={tail!r}: expected one of {', '.join(map(repr, _TAILS))}")
        # A machine that has all ranks reads all data.
        self._shard = shard and local_world < self._world
        if self._shard and tail != "pad":
            raise ValueError(f'tail={tail!r}: machines that read a shard each need tail="pad" (then use batch.mask)')
        self._gather = gather
        self._tail = tail
        self._mask = mask
        self._text = _native.with_drop_last(feed.text) if tail == "drop" else feed.text
        self._program = _program(self._world) if run is None else run
        self._run = str(next(_numbers[self._program]))
        self._daemon = daemon.address(socket)
        self._state: dict[str, Any] | None = None
        self._client: _native.Client | None = None
        self._reader: Reader | None = None
        self._columns: dict[str, Column] = {}
        # Batches that are to be handed out first.
        self._pending: collections.deque[Batch] = collections.deque()
        self._last: _native.Position | None = None
        # Batches that were handed out and are not trained yet, where `trained` reports that.
        self._untrained: collections.deque[Batch] | None = None
        self._process = os.getpid()
        self._one_thread = _OneThread()

    def __iter__(self) -> Iterator[Batch]:
        """The batches of an epoch, or what is left of it. There are none after the last epoch."""
        with self._claimed:
            self._attached()
            if self._untrained:
                # What the iteration before has handed out in vain.
                self._pending.extendleft(reversed(self._untrained))
                self._untrained.clear()
        epoch = None
        while (batch := self._take(epoch)) is not None:
            epoch, last = batch.epoch, batch.place.last
            yield batch
            # Its memory is free once the program drops it, too.
            del batch
            if last:
                return

    def _take(self, epoch: int | None) -> Batch | None:
        """The next batch, which counts as handed out; `None` if there is none in this epoch, if one is given."""
        with self._claimed:
            batch = self._next()
            if batch is None:
                return None
            # Where short batches are dropped, only the next epoch shows that this one has ended.
            if epoch is not None and batch.epoch != epoch:
                self._pending.appendleft(batch)
                return None
            if self._untrained is None:
                self._last = batch.place.position
            else:
                self._untrained.append(batch)
            return batch

    def _next(self) -> Batch | None:
        if self._pending:
            return self._pending.popleft()
        if self._reader is None:
            self._attached()
        assert self._reader is not None
        return self._reader.next()

    @property
    def _claimed(self) -> _OneThread:
        """Refuses other threads while it is held, and child processes always."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this loader belongs to the process that made it: a child would take its batches. "
                "Use it there, and set num_workers=0; it reads ahead by itself"
            )
        return self._one_thread

    def await_training(self) -> None:
        """Prepares for a framework that takes batches before it trains on those that it has: it calls `trained`.

        `state_dict` is then that of the batch trained last, and an iteration begins with the batches that the one before
        has handed out in vain.
        """
        if self._untrained is None:
            self._untrained = collections.deque()

    def trained(self) -> None:
        """Reports that one more batch was trained, in the order in which they were handed out."""
        if not self._untrained:
            raise RuntimeError("no batch is left to train: call await_training before iterating, and this once per batch")
        self._last = self._untrained.popleft().place.position

    def __len__(self) -> int:
        """Batches of an epoch, where the files have the number of their rows, as Parquet without `filter`.

        At most so many where bad records are skipped.
        """
        batches = self._attached().batches
        if batches is None:
            why = "it depends on the shards" if self._shard else "the files do not have the number of their rows"
            raise TypeError(f"the number of batches is not known: {why}")
        return batches

    def evaluate(self, name: str) -> Iterator[Batch]:
        """One pass over the held-out data `name`, in its order, by all ranks together. Training continues where it was.

        A short last batch is padded unless `tail` is "partial".
        """
        with self._claimed:
            client = self._attached()
            with self._failure_shared(f"evaluate {name!r}"):
                evaluation = client.evaluate(name)
            self._check_machines(evaluation.identity)
            reader = self._read(evaluation, self._tail != "partial")
        try:
            while (batch := reader.next()) is not None:
                yield batch
                del batch
        finally:
            reader.close()

    def state_dict(self) -> dict[str, Any] | None:
        """That of the batch handed out last. A program that prefetches saves `Batch.state_dict` instead."""
        if self._last is None:
            return self._state
        return json.loads(self._last.state())

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Resumes after the batch with this state; begins if there is none."""
        if state is not None and not isinstance(state, Mapping):
            raise TypeError(f"expected a state, which is a dictionary, found {type(state).__name__}")
        self.close()
        self._state = None if state is None else dict(state)

    def close(self) -> None:
        """Leaves the feed. Batches stay valid, and iterating continues after the one handed out last."""
        # A child leaves what it has inherited.
        with self._one_thread if os.getpid() == self._process else contextlib.nullcontext():
            if self._last is not None:
                self._state = self.state_dict()
            self._pending.clear()
            if self._untrained:
                self._untrained.clear()
            if self._reader is not None:
                self._reader.close()
            if self._client is not None:
                self._client.close()
            self._client = self._reader = self._last = None

    @property
    def identity(self) -> str:
        """A hash of the feed, without what only changes its speed, the number of ranks, the place, and the files found.

        Ranks of several machines have different rows of the same batches only if all have the same one. The loaders of
        PyTorch and JAX compare it where their processes are connected; other programs should.
        """
        return self._attached().identity

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of a batch, by name, without that of `mask`."""
        self._attached()
        return dict(self._columns)

    @property
    def epochs(self) -> range:
        """The numbers of the epochs that are left, with the one that it is in. Waits for the next batch."""
        with self._claimed:
            client = self._attached()
            if not self._pending and (batch := self._next()) is not None:
                self._pending.append(batch)
            first = self._pending[0].epoch if self._pending else client.epochs
            return range(first, client.epochs)

    def _attached(self) -> _native.Client:
        with self._claimed:
            if self._client is None:
                with self._failure_shared("attach to the feed"):
                    self._client = self._attach()
                try:
                    self._prepare(self._client)
                except BaseException:
                    self.close()
                    raise
            return self._client

    def _prepare(self, client: _native.Client) -> None:
        columns = enumerate(client.columns)
        self._columns = {name: Column(kind, dtype, shape, place) for place, (name, kind, dtype, shape) in columns}
        with self._failure_shared("use the columns"):
            if self._mask in self._columns:
                raise _native.SpecError(f"mask={self._mask!r}: the feed has a column with that name; choose another")
            self._check_columns(self._columns)
        ranks = self._check_machines(client.identity, client.meeting)
        if self._shard:
            self._meet(client, ranks)
        self._reader = self._read(client, self._tail == "pad")

    def _check_machines(self, identity: str, meeting: str | None = None) -> list[_Rank] | None:
        """Raises `FeedError` on all ranks if those of other machines have another identity. Returns all ranks.

        Only where the ranks are connected, which then wait for each other.
        """
        if self._local_world == self._world:
            return None
        all_ranks = self._exchange(_Rank(self._rank, identity, meeting))
        if all_ranks is None:
            return None
        # One may have failed because of another.
        failed = {of.error: of.rank for of in reversed(all_ranks) if of.error is not None}
        if failed:
            raise _native.FeedError("; ".join(f"rank {rank} {error}" for error, rank in failed.items()))
        if without := [of.rank for of in all_ranks if of.meeting is None and any(other.meeting for other in all_ranks)]:
            raise _native.FeedError(
                f"rank {without[0]} does not read a shard, as others do: pass shard=True to all loaders, and upgrade its daemon if "
                "that is older than this package"
            )
        numbers = sorted(of.rank for of in all_ranks)
        if numbers != list(range(self._world)):
            raise _native.FeedError(f"the {self._world} processes have the ranks {numbers}: expected each once")
        if others := [of.rank for of in all_ranks if of.identity != identity]:
            raise _native.FeedError(
                f"rank {self._rank} and rank {others[0]} on another machine differ in the feed, its state or the files that "
                "they have found: give all the same Feed, state and `shard`, and files in a bucket or a shared directory"
            )
        return all_ranks

    def _meet(self, client: _native.Client, ranks: list[_Rank] | None) -> None:
        """Sends the host of this machine the addresses of all hosts."""
        if ranks is None:
            raise _native.FeedError(
                "shard=True: the ranks are not connected. Initialize torch.distributed or jax.distributed before the first "
                "batch and use the loader of that framework, or pass `gather`"
            )
        machines = collections.defaultdict(list)
        for of in ranks:
            if of.meeting is None:
                raise _native.FeedError("the daemons are older than this package and cannot read shards: upgrade them")
            machines[of.meeting].append(of.rank)
        found = [{"ranks": of_machine, "meeting": json.loads(meeting)} for meeting, of_machine in machines.items()]
        client.meet(json.dumps(found))

    @contextlib.contextmanager
    def _failure_shared(self, what: str) -> Iterator[None]:
        """If this rank cannot do `what`, those of other machines, which wait for it, get its exception."""
        try:
            yield
        except _native.RankLost:
            # A rank that is gone takes part in no exchange, and frameworks notice its end on all machines.
            raise
        except Exception as error:
            if self._local_world < self._world:
                # The exception is what matters here, whether or not the others can be reached.
                with contextlib.suppress(Exception):
                    self._exchange(_Rank(self._rank, "", None, f"cannot {what}: {error}"[:_ERROR_LENGTH]))
            raise

    def _exchange(self, mine: _Rank) -> list[_Rank] | None:
        """What all ranks say of themselves, if they are connected."""
        text = json.dumps(mine)
        found = self._gathered(text) if self._gather is None else self._gather(text)
        return None if found is None else [_Rank(*json.loads(rank)) for rank in found]

    def _gathered(self, text: str) -> Sequence[str] | None:
        """The texts of all ranks, if the framework connects them."""
        return None

    def _read(self, ring: _native.Client | _native.Evaluation, padded: bool) -> Reader:
        return Reader(ring, self, padded)

    def _attach(self) -> _native.Client:
        state = None if self._state is None else json.dumps(self._state)
        ranks = (self._rank, self._world, self._local_world)
        shard = json.dumps(_shard_request()) if self._shard else None
        deadline = time.monotonic() + _CONNECT_SECONDS
        while True:
            process = None
            try:
                fd = None if self._daemon is None else daemon.connect(self._daemon)
                if fd is not None:
                    run = f"{self._program} {self._run}"
                    return _native.Client.attach_to_daemon(fd, self._text, run, ranks, state, shard)
                process = host.start(self._program)
                return _native.Client.attach(self._program, self._text, self._run, ranks, state, shard)
            except ConnectionError:
                # A host that ends just now.
                host.check(process)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _check_columns(self, columns: Mapping[str, Column]) -> None:
        """Refuses columns that the arrays of an adapter cannot hold."""

    @staticmethod
    def _array(native: _native.Array) -> Any:
        import numpy

        array = numpy.asarray(native)
        if native.dtype == "bfloat16":
            import ml_dtypes

            array = array.view(ml_dtypes.bfloat16)
        return array

    def __getstate__(self) -> Any:
        raise TypeError(
            "a loader cannot be sent to another process: pass the Feed and make the loader there, "
            "or set num_workers=0; it reads ahead by itself"
        )


def _shard_request() -> dict[str, Any]:
    """How machines that read shards reach this one, as the environment says."""
    request: dict[str, Any] = {}
    # The address that a machine uses for that of rank 0 is likely to be one that all can reach.
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]
    if toward := os.environ.get("MASTER_ADDR") or coordinator.strip("[]"):
        request["toward"] = toward
    if address := os.environ.get("MILLSTREAM_SHARD_ADDRESS"):
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            parsed = None
        if parsed is None or getattr(parsed, "scope_id", None) or parsed.is_unspecified or parsed.is_multicast:
            raise ValueError(f"MILLSTREAM_SHARD_ADDRESS={address}: not an address of one machine, such as 10.0.0.7")
        request["address"] = str(parsed)
    if ports := os.environ.get("MILLSTREAM_SHARD_PORTS"):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", ports)
        first, last = (int(port) for port in (found[1], found[2] or found[1])) if found else (0, 0)
        if not 1024 <= first <= last < 1 << 16:
            raise ValueError(f"MILLSTREAM_SHARD_PORTS={ports}: not a port such as 7430, or a range such as 7430-7439, from 1024 on")
        request["ports"] = [first, last]
    return request


def _program(world: int) -> str:
    """Names the program whose ranks belong together."""
    if world == 1:
        return f"process {os.getpid()}"
    for names in (["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"], ["MASTER_ADDR", "MASTER_PORT"]):
        values = [os.environ.get(name) for name in names]
        if all(values):
            return " ".join(map(str, values))
    return f"children of {os.getppid()}"
