"""The examples that start several hosts, on Google Cloud, Kubernetes and Slurm, suit the programs and each other.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_launchers.py -v

No cloud, cluster or scheduler is needed: scripts run with stand-ins for their commands.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml  # a dependency of moto

from support import MILLSTREAM, ROOT, millstream

PACKAGING = ROOT / "packaging"
CREATE = PACKAGING / "gce/create.sh"
STARTUP = PACKAGING / "gce/startup.sh"
SBATCH = PACKAGING / "slurm/train.sbatch"
MANIFESTS = {
    document["kind"]: document
    for name in ("jobset.yaml", "kueue.yaml")
    for document in yaml.safe_load_all((PACKAGING / "kubernetes" / name).read_text())
}
FILES = MANIFESTS["ConfigMap"]["data"]
HOSTS = MANIFESTS["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
POD = HOSTS["template"]["spec"]
CONFIGURATION = tomllib.loads(FILES["millstreamd.toml"])
JOB = tomllib.loads(FILES["job.toml"])
# The programs need this long besides `stop_seconds`.
RESERVE = 10
# What a script may take.
PATIENCE = 60


def program(directory: Path, name: str, text: str):
    """Writes a stand-in for a command."""
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def wait_for(what: str, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Scripts(unittest.TestCase):
    def test_shellcheck_reports_nothing(self):
        shellcheck = Path(sys.executable).with_name("shellcheck")
        with tempfile.TemporaryDirectory() as scratch:
            host = Path(scratch) / "host.sh"
            host.write_text("#!/bin/sh\n" + FILES["host.sh"])
            for script in (CREATE, STARTUP, SBATCH, host):
                with self.subTest(script.name):
                    done = subprocess.run([shellcheck, script], capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
            host.write_text("#!/bin/sh\nrm $1\n")
            self.assertEqual(subprocess.run([shellcheck, host], capture_output=True).returncode, 1)


class Kubernetes(unittest.TestCase):
    def test_the_names_of_hosts_agree(self):
        spec = MANIFESTS["JobSet"]["spec"]
        name, namespace = (MANIFESTS["JobSet"]["metadata"][key] for key in ("name", "namespace"))
        network = spec["network"]
        self.assertTrue(network["enableDNSHostnames"] and network["publishNotReadyAddresses"])
        self.assertEqual(CONFIGURATION["peers"]["discover"], [f"dns:{network['subdomain']}:7420"])
        manual = (ROOT / "docs/src/guides/hosts.md").read_text()
        self.assertIn(f"'*.{network['subdomain']}.{namespace}.svc.cluster.local'", manual)
        policy = MANIFESTS["NetworkPolicy"]
        pods = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}
        self.assertEqual(policy["metadata"]["namespace"], namespace)
        self.assertEqual(policy["spec"]["podSelector"], pods)
        self.assertEqual(policy["spec"]["ingress"], [{"from": [{"podSelector": pods}]}])

    def test_the_queue_has_room_for_the_jobset(self):
        queue = MANIFESTS["LocalQueue"]
        self.assertEqual(
            MANIFESTS["JobSet"]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], queue["metadata"]["name"]
        )
        self.assertEqual(queue["metadata"]["namespace"], MANIFESTS["JobSet"]["metadata"]["namespace"])
        self.assertEqual(queue["spec"]["clusterQueue"], MANIFESTS["ClusterQueue"]["metadata"]["name"])
        (group,) = MANIFESTS["ClusterQueue"]["spec"]["resourceGroups"]
        (flavor,) = group["flavors"]
        self.assertEqual(flavor["name"], MANIFESTS["ResourceFlavor"]["metadata"]["name"])
        amount = lambda text: int(str(text).removesuffix("Gi"))
        requests = POD["containers"][0]["resources"]["requests"]
        quotas = {resource["name"]: amount(resource["nominalQuota"]) for resource in flavor["resources"]}
        self.assertEqual(quotas.keys(), requests.keys())
        for name, request in requests.items():
            self.assertLessEqual(amount(request) * HOSTS["parallelism"], quotas[name])

    def test_the_jobset_ends_with_the_training_job(self):
        self.assertEqual(HOSTS["completions"], HOSTS["parallelism"])
        self.assertEqual(HOSTS["completionMode"], "Indexed")
        self.assertEqual(HOSTS["successPolicy"]["rules"], [{"succeededCount": 1}])
        self.assertEqual(POD["restartPolicy"], "Never")
        self.assertGreaterEqual(POD["terminationGracePeriodSeconds"], CONFIGURATION["stop_seconds"] + RESERVE)

    def test_workers_fit_the_hosts(self):
        workers = JOB["workers"]
        self.assertEqual(workers["max"], workers["per_host"] * HOSTS["parallelism"])
        self.assertLessEqual(workers["max"], JOB["data"]["lanes"])
        self.assertGreater(workers["max"], workers["min"])

    def test_volumes_and_files_exist(self):
        volumes = {volume["name"]: volume for volume in POD["volumes"]}
        (container,) = POD["containers"]
        mounted = set()
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "configMap" in volume:
                self.assertEqual(volume["configMap"]["name"], MANIFESTS["ConfigMap"]["metadata"]["name"])
                mounted.add(mount["subPath"])
        self.assertEqual(mounted, FILES.keys())
        user, group = map(int, re.search(r"^USER (\d+):(\d+)$", self.containerfile(), re.MULTILINE).groups())
        context = POD["securityContext"]
        self.assertEqual((context["runAsUser"], context["runAsGroup"], context["fsGroup"]), (user, group, group))
        self.assertIn("libucx0", self.containerfile())

    @staticmethod
    def containerfile() -> str:
        return (PACKAGING / "container/Containerfile").read_text()

    def test_the_daemon_starts_with_its_configuration(self):
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            domain = "clicks.default.svc.cluster.local"
            millstream("peers", "init-ca", scratch / "ca")
            millstream("peers", "issue", "--ca", scratch / "ca", "--out", scratch, f"*.{domain}")
            for kind in ("pem", "key"):
                (scratch / f"any.{domain}.{kind}").rename(scratch / f"host.{kind}")
            for name in ("ca.pem", "crl.pem"):
                shutil.copy(scratch / "ca" / name, scratch)
            text = FILES["millstreamd.toml"].replace("0.0.0.0:7420", "127.0.0.1:0").replace('"eth0"', '"lo"')
            for directory in ("/etc/millstream/peers", "/var/lib/millstream", "/run/millstream"):
                self.assertIn(directory, text)
                text = text.replace(directory, str(scratch))
            # No name server is asked.
            text = text.replace("dns:clicks:7420", "static:127.0.0.1:1")
            (scratch / "millstreamd.toml").write_text(text)
            daemon = subprocess.Popen(
                [MILLSTREAM.with_name("millstreamd"), "--config", scratch / "millstreamd.toml"], stderr=subprocess.DEVNULL
            )
            try:
                socket = ["--socket", scratch / "millstreamd.sock"]
                (probe,) = {
                    tuple(POD["containers"][0][name]["exec"]["command"]) for name in ("startupProbe", "livenessProbe")
                }
                command = [MILLSTREAM, *probe[1:], *socket]
                wait_for("the daemon answers", lambda: subprocess.run(command, capture_output=True).returncode == 0)
                this = millstream("peers", *socket)["this_host"]
                self.assertTrue(this["name"].endswith(f".{domain}"), this)
            finally:
                daemon.send_signal(signal.SIGTERM)
                self.assertEqual(daemon.wait(PATIENCE), 0)

    def test_the_job_is_valid(self):
        # With local data: jobs for several hosts have theirs in buckets, which are not asked here.
        text = FILES["job.toml"].split("[workers]")[0]
        with tempfile.TemporaryDirectory() as scratch:
            text, data = re.subn(r'"gs://.*?([^/"]*)"', rf'"{scratch}/\1"', text)
            self.assertEqual(data, 3)
            columns = {"clicked": [0, 1] * 8, "age": [1.5, 2.5] * 8, "site": ["a", "b"] * 8, "user": ["u"] * 16}
            rows = pa.table(columns)
            for name in ("train-0.parquet", "eval.parquet"):
                pq.write_table(rows, Path(scratch) / name)
            job = Path(scratch) / "job.toml"
            job.write_text(text)
            self.assertEqual(millstream("check", job)["name"], "clicks")


class Host(unittest.TestCase):
    """The script of a pod, with stand-ins for the daemon and its commands."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        program(self.scratch, "sleep", "exec /bin/sleep 0.01")
        program(self.scratch, "millstreamd", 'trap "exit 0" TERM; while :; do /bin/sleep 0.01; done')
        # Keeps the job in a file; `ends` has the status of the training job once it has ended.
        program(
            self.scratch,
            "millstream",
            r"""
            cd "${0%/*}"
            case "$*" in
            "list -n 1") ;;
            "list -n 1 --json")
                id=$(cat job 2>/dev/null)
                printf '{"jobs": [\n %s]}\n' "${id:+{\"id\": \"$id\", \"name\": \"clicks\"}" ;;
            *)
                echo "$*" >>calls
                case "$*" in
                *--resume) [[ -e unfinished ]] || { cat refusal >&2; exit 1; }; echo clicks-1 | tee job ;;
                submit*) echo clicks-2 | tee job ;;
                wait*) until [[ -e ends ]]; do /bin/sleep 0.01; done; exit "$(<ends)" ;;
                esac ;;
            esac""",
        )
        (self.scratch / "refusal").write_text("error: no unfinished run of this job in gs://example-data/runs/clicks\n")
        self.script = self.scratch / "host.sh"
        self.script.write_text(FILES["host.sh"])

    def start(self, index: int) -> subprocess.Popen:
        environment = {
            **os.environ,
            "PATH": f"{self.scratch}:{os.environ['PATH']}",
            "JOB_COMPLETION_INDEX": str(index),
        }
        process = subprocess.Popen(
            ["sh", self.script], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def calls(self) -> list[str]:
        path = self.scratch / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def ends(self, process: subprocess.Popen, status: int):
        (self.scratch / "ends").write_text(str(status))
        self.assertEqual(process.wait(PATIENCE), status)

    def test_the_first_host_begins_a_run_if_none_is_unfinished(self):
        self.ends(self.start(0), 0)
        submit = "submit /etc/millstream/jobs/job.toml"
        self.assertEqual(self.calls(), [f"{submit} --resume", submit, "wait clicks-2"])

    def test_the_first_host_continues_an_unfinished_run(self):
        (self.scratch / "unfinished").touch()
        self.ends(self.start(0), 0)
        self.assertEqual(self.calls(), ["submit /etc/millstream/jobs/job.toml --resume", "wait clicks-1"])

    def test_a_refusal_for_another_reason_begins_no_run(self):
        (self.scratch / "refusal").write_text("error: the bucket does not answer\n")
        process = self.start(0)
        wait_for("it is tried again", lambda: len(self.calls()) > 2)
        self.assertEqual(set(self.calls()), {"submit /etc/millstream/jobs/job.toml --resume"})
        self.end(process)

    def test_hosts_that_are_called_submit_nothing(self):
        for index in (0, 1):
            with self.subTest(index):
                (self.scratch / "job").write_text("clicks-9")
                self.ends(self.start(index), 0)
                self.assertEqual(self.calls(), ["wait clicks-9"] * (index + 1))

    def test_other_hosts_wait_for_a_call(self):
        process = self.start(1)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        (self.scratch / "job").write_text("clicks-9")
        self.ends(process, 0)
        self.assertEqual(self.calls(), ["wait clicks-9"])

    def test_a_failed_job_fails_the_pod(self):
        self.ends(self.start(0), 1)

    def test_a_stopped_pod_does_not_succeed(self):
        process = self.start(0)
        wait_for("it waits for the job", lambda: "wait clicks-2" in self.calls())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), 143)

    def test_a_daemon_that_ends_fails_the_pod(self):
        program(self.scratch, "millstreamd", "exit 2")
        program(self.scratch, "millstream", "exit 1")
        self.assertEqual(self.start(0).wait(PATIENCE), 1)


class GoogleCloud(unittest.TestCase):
    def test_the_configuration_is_isolated_and_stops_in_time(self):
        (text,) = re.findall(r"<<END\n(.*?)\nEND\n", STARTUP.read_text(), re.DOTALL)
        configuration = tomllib.loads(text)
        self.assertLessEqual(configuration["stop_seconds"] + RESERVE, 30)
        self.assertEqual(configuration["peers"]["discover"], ["bucket:$bucket/peers"])
        self.assertEqual(configuration["peers"]["data_protection"], "isolated")
        rules = re.findall(r"firewall-rules create(.*?)\n(?!    )", CREATE.read_text().replace("\\\n", " "), re.DOTALL)
        self.assertEqual(len(rules), 2)
        open_rules = [rule for rule in rules if re.search(r"--allow=tcp(?!:)", rule)]
        (hosts,) = open_rules
        self.assertIn("--source-tags=millstream-host --target-tags=millstream-host", hosts)

    def test_the_scripts_agree(self):
        create, startup = CREATE.read_text(), STARTUP.read_text()
        names = re.search(r"^for name in (.*); do$", startup, re.MULTILINE).group(1).split()
        secrets = re.findall(r"^add_secret (\S+)", create, re.MULTILINE)
        self.assertEqual(sorted(f"millstream-{name.replace('.', '-')}" for name in names), sorted(secrets))
        self.assertIn("--metadata=millstream-bucket=", create)
        self.assertEqual(re.findall(r"\$\(attribute (\w+)\)", startup), ["bucket"])
        self.assertIn("packages/millstream.deb", create)
        self.assertIn("packages/millstream.deb", startup)


class Slurm(unittest.TestCase):
    """The batch script, with stand-ins for Slurm's commands and the daemons; certificates are real."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.job = f"test{os.getpid()}"
        for node in ("n1", "n2"):
            self.addCleanup(shutil.rmtree, f"/tmp/millstream-{self.job}-{node}", True)
        program(self.scratch, "sleep", "exec /bin/sleep 0.05")
        program(self.scratch, "scontrol", f'[[ $1 == show ]] && printf "n1\\nn2\\n" || echo "$*" >>{self.scratch}/calls')
        program(
            self.scratch,
            "srun",
            'while [[ $1 == --* ]]; do shift; done\nfor node in n1 n2; do SLURMD_NODENAME=$node "$@" & done\nwait',
        )
        program(self.scratch, "scancel", f'echo "$*" >>{self.scratch}/calls; touch {self.scratch}/stop')
        program(
            self.scratch,
            "millstreamd",
            # The configuration appears last and whole: the test waits for it.
            f"cd {self.scratch}\n"
            "name=$(basename $2)\n"
            "ls $(dirname $2)/ca >authority-$name\n"
            "cp $2 part-$name && mv part-$name $name\n"
            "until [[ -e stop ]]; do /bin/sleep 0.05; done",
        )
        program(
            self.scratch,
            "millstream",
            rf"""
            case "$*" in
            peers*) exec {MILLSTREAM} "$@" ;;
            list*) exit ;;
            esac
            echo "$*" >>{self.scratch}/calls
            case "$*" in
            *--resume) echo "error: no unfinished run of this job in gs://x" >&2; exit 1 ;;
            submit*) echo clicks-1 ;;
            wait*) until [[ -e {self.scratch}/ends ]]; do /bin/sleep 0.05; done ;;
            esac""",
        )
        (self.scratch / "job.toml").touch()

    def start(self) -> subprocess.Popen:
        environment = {
            **os.environ,
            "PATH": f"{self.scratch}:{os.environ['PATH']}",
            "SLURM_JOB_ID": self.job,
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_SUBMIT_DIR": str(self.scratch),
            "SLURMD_NODENAME": "n1",
            "MILLSTREAM_INTERFACE": "ib0",
            "MILLSTREAM_PROTECTION": "isolated",
        }
        process = subprocess.Popen(
            ["bash", SBATCH, self.scratch / "job.toml"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.addCleanup(Host.end, process)
        return process

    def calls(self) -> list[str]:
        path = self.scratch / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def is_clean(self):
        self.assertEqual(list(self.scratch.glob("millstream-*")), [])
        self.assertEqual(list(Path("/tmp").glob(f"millstream-{self.job}-*")), [])

    def test_daemons_start_train_and_end(self):
        process = self.start()
        wait_for("it waits for the job", lambda: "wait clicks-1" in self.calls())
        wait_for("both daemons have started", lambda: len(list(self.scratch.glob("n?.toml"))) == 2)
        (private,) = self.scratch.glob("millstream-*")
        self.assertEqual(private.stat().st_mode & 0o777, 0o700)
        for node in ("n1", "n2"):
            configuration = tomllib.loads((self.scratch / f"{node}.toml").read_text())
            self.assertLess(configuration["stop_seconds"], 30)
            peers = configuration["peers"]
            self.assertEqual(peers["address"], f"{node}:7420")
            self.assertEqual(peers["discover"], ["static:n1:7420,n2:7420"])
            self.assertEqual((peers["data_interface"], peers["data_protection"]), ("ib0", "isolated"))
            for key in ("certificate", "key", "ca"):
                self.assertTrue(Path(peers[key]).exists(), peers[key])
            authority = (self.scratch / f"authority-{node}.toml").read_text().split()
            self.assertIn("ca.pem", authority)
            self.assertNotIn("ca.key", authority)
        (self.scratch / "ends").touch()
        self.assertEqual(process.wait(PATIENCE), 0)
        submit = f"submit {self.scratch}/job.toml"
        stop = f"--signal=TERM {self.job}.0"
        self.assertEqual(self.calls(), [f"{submit} --resume", submit, "wait clicks-1", stop])
        self.is_clean()

    def test_a_signal_saves_a_checkpoint_and_requeues(self):
        process = self.start()
        wait_for("it waits for the job", lambda: "wait clicks-1" in self.calls())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertEqual(self.calls()[3:5], ["cancel clicks-1", f"requeue {self.job}"])
        self.is_clean()

    def test_the_time_before_the_end_suffices(self):
        seconds = int(re.search(r"^#SBATCH --signal=B:TERM@(\d+)$", SBATCH.read_text(), re.MULTILINE).group(1))
        self.assertGreaterEqual(seconds, 60)
        self.assertRegex(SBATCH.read_text(), r"(?m)^#SBATCH --requeue$")


if __name__ == "__main__":
    unittest.main()
