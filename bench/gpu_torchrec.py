"""The models of `gpu_model.py` with TorchRec's sharded tables, for `gpu_ranks.py`.

TorchRec's planner divides the tables among the ranks. Lookups, all-to-all exchanges and FBGEMM's fused Adagrad, which keeps a sum
per number like ours, are TorchRec's; between ranks, rows and gradients travel as bfloat16 in bf16. Its pipeline
exchanges the ids of the next batch meanwhile.
"""

import argparse
import itertools
import logging

import gpu_model
import step_work as work
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.distributed import (
    DistributedModelParallel,
    TrainPipelineSparseDist,
)
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    QCommsConfig,
    get_qcomm_codecs_registry,
)
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper
from torchrec.distributed.planner import (
    EmbeddingShardingPlanner,
    ParameterConstraints,
    Topology,
)
from torchrec.distributed.types import ShardingType
from torchrec.streamable import Pipelineable

FEATURES = [f"c{feature}" for feature in range(work.CATEGORICAL)]
# FBGEMM's rows have at least 4 numbers; the first is the weight of the wide part.
WIDE_DIM = 4

# Advice that repeats itself on each rank.
logging.getLogger("torchrec").setLevel(logging.ERROR)


class Batch(Pipelineable):
    """Ids of all features, dense and labels of a rank's rows."""

    def __init__(self, ids: KeyedJaggedTensor, dense, labels):
        self.ids, self.dense, self.labels = ids, dense, labels

    def to(self, device, non_blocking: bool = False):
        return Batch(*(part.to(device=device, non_blocking=non_blocking) for part in (self.ids, self.dense, self.labels)))

    def record_stream(self, stream) -> None:
        for part in (self.ids, self.dense, self.labels):
            part.record_stream(stream)


class Rest(nn.Module):
    """The model behind its lookups. Its own module, because TorchRec's pipeline traces what is around the tables."""

    def __init__(self, options: argparse.Namespace, compiled):
        super().__init__()
        self.kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.rows, self.device_type, self.compiled = options.batch // options.workers, options.device.type, compiled

    def forward(self, deep: KeyedTensor, wide: KeyedTensor | None, dense, labels):
        wide = None if wide is None else self.in_order(wide)[:, :, 0]
        with torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.kind != torch.float32):
            return self.compiled(self.in_order(deep).to(self.kind), wide, dense, labels)

    def in_order(self, found: KeyedTensor):
        """`[rows, 26, dim]`. Sharded tables return features in the order of ranks."""
        return KeyedTensor.regroup([found], [FEATURES])[0].view(self.rows, work.CATEGORICAL, -1)


class Model(nn.Module):
    """A batch to its mean loss, twice: for the backward pass and to report, as TorchRec's pipeline expects."""

    def __init__(self, options: argparse.Namespace, compiled):
        super().__init__()
        bags = lambda dim: EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[EmbeddingBagConfig(name=f"{name}_{dim}", embedding_dim=dim, num_embeddings=options.ids, feature_names=[name]) for name in FEATURES],
        )
        self.deep = bags(options.dim)
        self.wide = bags(WIDE_DIM) if options.model == "wide_deep" else None
        self.rest = Rest(options, compiled)

    def forward(self, batch: Batch):
        wide = None if self.wide is None else self.wide(batch.ids)
        loss = self.rest(self.deep(batch.ids), wide, batch.dense, batch.labels)
        return loss, loss.detach()


class TorchRec:
    """Trains like `gpu_model.Trainer`."""

    def __init__(self, options: argparse.Namespace, rows: int):
        self.options, self.device, self.rows = options, options.device, rows
        layers = gpu_model.Layers(options).to(self.device)
        model = Model(options, torch.compile(layers, dynamic=False))
        self.model = sharded(model, options)
        self.fill()
        parameters = [parameter for parameter in layers.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adagrad(
            parameters, work.RATE, initial_accumulator_value=work.ACCUMULATOR, eps=work.EPSILON, fused=True
        )
        self.pipeline = TrainPipelineSparseDist(self.model, optimizer, self.device)
        self.loss = torch.zeros((), device=self.device)

    def fill(self) -> None:
        """Sets the rows that this rank has, and their sums of squares, to the first ones."""
        options = self.options
        with torch.no_grad():
            for name, state in {**self.model.state_dict(), **states(self.model)}.items():
                if not hasattr(state, "local_shards"):
                    continue
                table, is_sum = name.split(".embedding_bags.")[1].split(".")[0], "momentum" in name
                feature, dim = int(table[1:].split("_")[0]), int(table.split("_")[1])
                for shard in state.local_shards():
                    (row, column), (count, width) = shard.metadata.shard_offsets[:2], shard.metadata.shard_sizes[:2]
                    if is_sum:
                        shard.tensor.fill_(work.ACCUMULATOR)
                    elif dim != options.dim:
                        shard.tensor.zero_()
                    else:
                        whole = shard.tensor.new_empty([options.ids, dim])
                        gpu_model.fill(whole, options, feature)
                        shard.tensor.copy_(whole[row : row + count, column : column + width])

    def prepared(self, labels, dense, ids):
        lengths = torch.ones(work.CATEGORICAL * self.rows, dtype=torch.int32)
        values = KeyedJaggedTensor(FEATURES, torch.from_numpy(ids.T.reshape(-1)), lengths=lengths)
        return Batch(values, torch.from_numpy(dense), torch.from_numpy(labels)).to(self.device)

    def losses(self, batches: list) -> list[float]:
        rest = iter(batches)
        return [self.pipeline.progress(rest).item() for _ in batches]

    def passes(self, batches: list, captured: bool):
        assert not captured
        endless = itertools.cycle(batches)

        def once() -> None:
            for _ in batches:
                self.loss = self.pipeline.progress(endless)

        return once

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def states(model) -> dict:
    """The state of the fused optimizer by parameter."""
    return {f"{name}.{key}": value for name, found in model.fused_optimizer.state_dict()["state"].items() for key, value in found.items()}


def sharded(model: Model, options: argparse.Namespace):
    """The model with its tables divided by the plan of rank 0."""
    fused = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": work.RATE, "eps": work.EPSILON}
    exchanged = QCommsConfig(forward_precision=CommType.BF16, backward_precision=CommType.BF16)
    codecs = get_qcomm_codecs_registry(exchanged) if options.precision == "bf16" else None
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused, qcomm_codecs_registry=codecs)]
    world, kind = options.workers, options.device.type
    memory = {"hbm_cap": torch.cuda.get_device_properties(options.device).total_memory} if kind == "cuda" else {}
    topology = Topology(world_size=world, local_world_size=world, compute_device=kind, **memory)
    # Data-parallel tables and those in host memory have no fused optimizer on the GPU.
    allowed = ParameterConstraints(
        sharding_types=[sharding.value for sharding in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)],
        compute_kernels=[EmbeddingComputeKernel.FUSED.value],
    )
    tables = [config.name for bags in (model.deep, model.wide) if bags for config in bags.embedding_bag_configs()]
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=options.batch // world, constraints=dict.fromkeys(tables, allowed))
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    wrapper = DefaultDataParallelWrapper(static_graph=True)
    return DistributedModelParallel(model, device=options.device, plan=plan, sharders=sharders, data_parallel_wrapper=wrapper)
