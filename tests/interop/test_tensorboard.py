"""TensorBoard's reader reads the event files that `millstream train` writes.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_tensorboard.py -v
"""

import pathlib
import signal
import struct
import subprocess
import time
import unittest

from tensorboard.backend.event_processing import event_file_loader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata

from support import MILLSTREAM, WithoutDaemon, millstream

EVERY_STEPS = 1000
CHECKPOINT_STEPS = 2000
HISTOGRAM_STEPS = 8000
BATCH = 32
# Enough for a run to take seconds, which leaves time to kill it.
ROWS = 640_000
EPOCHS = 2
STEPS = EPOCHS * ROWS // BATCH

JOB = f"""name = "tiny"
seed = 11
[data]
train = ["train-*.parquet"]
eval = ["eval.parquet"]
batch_size = {BATCH}
epochs = {EPOCHS}
shuffle_rows = 4096
lanes = 4
[label]
column = "clicked"
[features]
i1 = {{ kind = "numeric", normalize = "log1p_zscore", missing = "mean" }}
c1 = {{ kind = "hashed", buckets = 500 }}
c2 = {{ kind = "hashed", buckets = 500 }}
[model]
kind = "wide_deep"
wide.features = ["c1", "c2"]
deep.features = ["i1", "c1", "c2"]
deep.embedding_dim = 4
deep.hidden = [16, 8]
[training]
threads = 1
[checkpoint]
every_steps = {CHECKPOINT_STEPS}
[tensorboard]
directory = "logs"
every_steps = {EVERY_STEPS}
histograms_every_steps = {HISTOGRAM_STEPS}
"""

CURVES = ["train/loss", "train/examples_per_second", "train/input_wait_fraction"]
METRICS = ["auc", "pr_auc", "log_loss", "normalized_entropy", "calibration", "rmse", "accuracy"]


class Events(WithoutDaemon):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        millstream("generate", "--rows", ROWS, "--shards", 2, cls.scratch / "train.parquet")
        millstream("generate", "--rows", 4000, "--first-row", ROWS, cls.scratch / "eval.parquet")
        cls.job = cls.scratch / "job.toml"
        cls.job.write_text(JOB)
        cls.outcome = millstream("train", cls.job)
        cls.whole = cls.scratch / "logs" / cls.outcome["job"]

    def read(self, directory: pathlib.Path) -> EventAccumulator:
        # 0 keeps every point, whereas TensorBoard itself shows a sample.
        sizes = {"scalars": 0, "histograms": 0, "tensors": 0}
        return EventAccumulator(str(directory), size_guidance=sizes).Reload()

    def curve(self, events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in events.Scalars(tag)]

    def test_curves_cover_all_steps(self):
        events = self.read(self.whole)
        self.assertEqual(sorted(events.Tags()["scalars"]), sorted(CURVES + [f"eval/{name}" for name in METRICS]))
        for tag in CURVES:
            self.assertEqual([step for step, _ in self.curve(events, tag)], list(range(EVERY_STEPS, STEPS + 1, EVERY_STEPS)))
        losses = [loss for _, loss in self.curve(events, "train/loss")]
        self.assertLess(sum(losses[-5:]), sum(losses[:5]))
        self.assertTrue(all(0 <= share <= 1 for _, share in self.curve(events, "train/input_wait_fraction")))
        self.assertTrue(all(rate > 0 for _, rate in self.curve(events, "train/examples_per_second")))

    def test_every_evaluation_has_all_metrics(self):
        events = self.read(self.whole)
        for name in METRICS:
            points = self.curve(events, f"eval/{name}")
            self.assertEqual([step for step, _ in points], [STEPS // EPOCHS * (epoch + 1) for epoch in range(EPOCHS)])
            single = struct.unpack("f", struct.pack("f", self.outcome["eval"][name]))[0]
            self.assertEqual(points[-1][1], single)

    def test_histograms_count_every_weight(self):
        events = self.read(self.whole)
        tags = events.Tags()["histograms"]
        self.assertTrue(tags and all(tag.startswith("weights/") for tag in tags), tags)
        parameters = millstream("check", self.job, "--learn")["parameters"]["total"]
        for nth, step in enumerate(range(HISTOGRAM_STEPS, STEPS + 1, HISTOGRAM_STEPS)):
            numbers = 0
            for tag in tags:
                event = events.Histograms(tag)[nth]
                histogram = event.histogram_value
                self.assertEqual((event.step, sum(histogram.bucket)), (step, histogram.num))
                self.assertTrue(histogram.min <= histogram.max and histogram.bucket_limit[-1] == histogram.max)
                numbers += histogram.num
            self.assertEqual(numbers, parameters)

    def test_hyper_parameters_and_the_job_are_recorded(self):
        events = self.read(self.whole)
        content = events.PluginTagToContent("hparams")[hparams_metadata.SESSION_START_INFO_TAG]
        start = hparams_metadata.parse_session_start_info_plugin_data(content)
        self.assertEqual(start.hparams["data.batch_size"].number_value, BATCH)
        self.assertEqual(start.hparams["model.deep.hidden"].string_value, "16, 8")
        self.assertEqual(start.hparams["model.deep.optimizer.kind"].string_value, "adagrad")
        self.assertEqual(start.hparams["model.deep.optimizer.learning_rate"].number_value, 0.05)
        self.assertIs(start.hparams["data.drop_last"].bool_value, False)
        [text] = events.Tensors("job")
        self.assertEqual(events.SummaryMetadata("job").plugin_data.plugin_name, "text")
        self.assertIn('kind = "wide_deep"', text.tensor_proto.string_val[0].decode())

    def test_a_killed_and_resumed_run_matches_an_uninterrupted_one(self):
        logs = self.scratch / "killed"
        arguments = ["--set", f"tensorboard.directory={logs}", "--set", f"checkpoint.directory={self.scratch / 'runs'}"]
        training = subprocess.Popen([MILLSTREAM, "train", self.job, *arguments], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        # Checkpoints are written in the background, so the steps that have one are not known in advance.
        committed = lambda: [int(path.parent.name[5:]) for path in self.scratch.glob("runs/*/step-*/manifest.json")]
        while max(committed(), default=0) < STEPS // 4:
            self.assertIsNone(training.poll(), "the run ended before it could be killed")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.002)
        # Its workers die with it.
        training.send_signal(signal.SIGKILL)
        training.wait()
        newest = max(committed())
        self.assertLess(newest, STEPS)
        [directory] = logs.iterdir()
        [first] = directory.iterdir()
        # A partial record, as after a crash of the machine.
        with open(first, "ab") as file:
            file.write(struct.pack("<Q", 100) + b"half")
        outcome = millstream("train", self.job, *arguments, "--resume")
        self.assertEqual(len(list(directory.iterdir())), 2)
        self.assertEqual((outcome["job"], outcome["eval"]), (directory.name, self.outcome["eval"]))

        last = max(directory.iterdir())
        starts = [event for event in event_file_loader.EventFileLoader(str(last)).Load() if event.HasField("session_log")]
        [step] = [event.step for event in starts]
        # The worker may have survived the checkpoint by some steps.
        self.assertGreaterEqual(step, newest + 1)

        whole, resumed = self.read(self.whole), self.read(directory)
        self.assertEqual(sorted(resumed.Tags()["scalars"]), sorted(whole.Tags()["scalars"]))
        for name in METRICS:
            self.assertEqual(self.curve(resumed, f"eval/{name}"), self.curve(whole, f"eval/{name}"), name)
        # If a checkpoint lies between two points, the first point after it averages fewer steps.
        after = -(-(step - 1) // EVERY_STEPS) * EVERY_STEPS
        shorter = {after} if (step - 1) % EVERY_STEPS else set()
        [ours, theirs] = ([point for point in self.curve(events, "train/loss") if point[0] not in shorter] for events in [resumed, whole])
        self.assertEqual(ours, theirs)
        self.assertEqual(len(self.curve(resumed, "train/loss")), STEPS // EVERY_STEPS)
        for tag in whole.Tags()["histograms"]:
            shown = lambda events: [(event.step, event.histogram_value) for event in events.Histograms(tag)]
            self.assertEqual(shown(resumed), shown(whole), tag)
        self.assertEqual(len(resumed.Tensors("job")), 1)

    def test_training_continues_if_event_files_cannot_be_written(self):
        (self.scratch / "file").write_text("no directory")
        arguments = ["--set", "tensorboard.directory=file", "--set", "data.epochs=1"]
        done = subprocess.run([MILLSTREAM, "train", self.job, *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("TensorBoard"), 1, done.stderr)
        self.assertIn(str(self.scratch / "file" / "tiny-"), done.stderr)


if __name__ == "__main__":
    unittest.main()
