"""The container image and the Kubernetes examples: their configurations, jobs, commands and time limits suit the programs.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_containers.py -v

Neither an image nor a cluster is needed.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import tomllib
import unittest
from pathlib import Path

import yaml  # a dependency of moto

from support import MILLSTREAM, ROOT, millstream

CONTAINERFILE = (ROOT / "packaging/container/Containerfile").read_text()
MANIFESTS = [
    document
    for path in sorted((ROOT / "packaging/kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
IN_IMAGE = "/usr/share/doc/millstream/examples"


def manifests(*kinds: str) -> list[dict]:
    found = [document for document in MANIFESTS if document["kind"] in kinds]
    assert found, kinds
    return found


CONFIG_MAPS = {document["metadata"]["name"]: document["data"] for document in manifests("ConfigMap")}
CONFIGURATION = CONFIG_MAPS["millstream-config"]["millstreamd.toml"]
PODS = {
    document["kind"]: document["spec"]["template"]["spec"] for document in manifests("StatefulSet", "DaemonSet", "Job")
}
DAEMONS = [PODS["StatefulSet"], PODS["DaemonSet"]]


def image(instruction: str) -> list[str]:
    """The arguments of an instruction in JSON form."""
    return json.loads(re.search(rf"^{instruction}\b.*?(\[.*\])$", CONTAINERFILE, re.MULTILINE).group(1))


class Containers(unittest.TestCase):
    def test_pods_stop_after_their_jobs_have_saved_checkpoints(self):
        # Longer than the limit by what the daemon itself needs.
        reserve = 10
        stop = tomllib.loads(CONFIGURATION)["stop_seconds"]
        for pod in DAEMONS:
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], stop + reserve)
        source = (ROOT / "daemon/src/config.rs").read_text()
        embedded = int(re.search(r"EMBEDDED_STOP: Duration = Duration::from_secs\((\d+)\)", source).group(1))
        self.assertGreaterEqual(PODS["Job"]["terminationGracePeriodSeconds"], embedded + reserve)

    def test_pods_run_as_the_user_of_the_image(self):
        user, group = map(int, re.search(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE).groups())
        self.assertIn(f"--uid {user} ", CONTAINERFILE)
        self.assertIn(f"--gid {group} ", CONTAINERFILE)
        for pod in PODS.values():
            context = pod["securityContext"]
            self.assertEqual((context["runAsUser"], context["runAsGroup"]), (user, group))

    def test_volumes_and_the_keys_of_configurations_exist(self):
        templates = manifests("StatefulSet")[0]["spec"]["volumeClaimTemplates"]
        claims = {document["metadata"]["name"] for document in manifests("PersistentVolumeClaim")}
        for kind, pod in PODS.items():
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            if kind == "StatefulSet":
                volumes |= {template["metadata"]["name"]: template for template in templates}
            mounts = [mount for container in pod["containers"] for mount in container["volumeMounts"]]
            self.assertLessEqual({mount["name"] for mount in mounts}, volumes.keys())
            for mount in mounts:
                volume = volumes[mount["name"]]
                if "configMap" in volume and "subPath" in mount:
                    self.assertIn(mount["subPath"], CONFIG_MAPS[volume["configMap"]["name"]])
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)

    def test_the_daemon_starts_with_its_configuration_and_answers_the_probes(self):
        with tempfile.TemporaryDirectory() as scratch:
            configuration = Path(scratch) / "millstreamd.toml"
            text = CONFIGURATION.replace("/var/lib/millstream", scratch).replace("/run/millstream", scratch)
            configuration.write_text(text.replace("0.0.0.0:9464", "127.0.0.1:0"))
            probes = [
                pod["containers"][0][probe]["exec"]["command"]
                for pod in DAEMONS
                for probe in ("startupProbe", "readinessProbe", "livenessProbe")
            ]
            for command in [image("CMD"), *(pod["containers"][0]["command"] for pod in DAEMONS)]:
                with self.subTest(command):
                    program, option, path, *rest = command
                    self.assertEqual((program, option, path), ("millstreamd", "--config", "/etc/millstream/millstreamd.toml"))
                    daemon = subprocess.Popen(
                        [MILLSTREAM.with_name(program), option, configuration, *rest], stderr=subprocess.DEVNULL
                    )
                    try:
                        self.answers(Path(scratch) / "millstreamd.sock", [image("HEALTHCHECK"), *probes])
                    finally:
                        daemon.send_signal(signal.SIGTERM)
                        self.assertEqual(daemon.wait(30), 0)

    def answers(self, socket: Path, commands: list[list[str]]):
        environment = {**os.environ, "MILLSTREAM_SOCKET": str(socket)}
        self.assertEqual({program for program, *_ in commands}, {"millstream"})
        deadline = time.monotonic() + 60
        for _, *arguments in commands:
            command = [MILLSTREAM, *arguments]
            while subprocess.run(command, capture_output=True, env=environment).returncode != 0:
                self.assertLess(time.monotonic(), deadline, f"the daemon does not answer `{command}`")
                time.sleep(0.01)

    def test_the_example_job_is_valid(self):
        with tempfile.TemporaryDirectory() as scratch:
            job = Path(scratch) / "job.toml"
            text = CONFIG_MAPS["millstream-jobs"]["job.toml"]
            self.assertIn(IN_IMAGE, text)
            job.write_text(text.replace(IN_IMAGE, str(ROOT / "examples")).replace("/var/lib/millstream", scratch))
            self.assertEqual(millstream("check", job)["name"], "census")

    def test_the_script_of_the_job_resumes_what_has_a_checkpoint(self):
        (script,) = PODS["Job"]["containers"][0]["args"]
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "millstream").write_text('#!/bin/sh\necho "$@"\n')
            (Path(scratch) / "millstream").chmod(0o755)
            environment = {"PATH": f"{scratch}:{os.environ['PATH']}"}
            script = script.replace("/var/lib/millstream", scratch)

            def arguments() -> str:
                return subprocess.run(
                    ["sh", "-c", script], check=True, stdout=subprocess.PIPE, text=True, env=environment
                ).stdout.strip()

            first = "train /etc/millstream/jobs/job.toml --local"
            self.assertEqual(arguments(), first)
            step = Path(scratch) / "checkpoints" / "census-k3f9q2" / "step-0000000500"
            step.mkdir(parents=True)
            self.assertEqual(arguments(), first)
            (step / "manifest.json").touch()
            self.assertEqual(arguments(), f"{first} --resume")


if __name__ == "__main__":
    unittest.main()
