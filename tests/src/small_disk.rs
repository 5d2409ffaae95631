//! File systems of a stated size, for tests of full disks.

use std::path::Path;
use std::process::Command;

/// Runs the command that follows as root of its own user and mount namespaces, where it may mount file systems.
const NAMESPACE: [&str; 3] = ["unshare", "--map-root-user", "--mount"];

/// A shell that runs `script` where `directory` is an empty file system of `bytes` bytes, which nothing outside sees.
/// Arguments that are added to the command are the script's `$@`. `None` where a test may not create a namespace.
pub fn shell(directory: &Path, bytes: u64, script: &str) -> Option<Command> {
    let mount = format!("mount -t tmpfs -o size={bytes} tmpfs '{}'", directory.display());
    let [unshare, options @ ..] = NAMESPACE;
    let within = |script: &str| {
        let mut command = Command::new(unshare);
        command.args(options).args(["sh", "-c", script, "sh"]);
        command
    };
    let possible = within(&mount).output().is_ok_and(|output| output.status.success());
    possible.then(|| within(&format!("{mount} || exit\n{script}")))
}
