//! The daemon: its socket, whether this user may use it, and its version.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millstream_control::proto::AboutReply;
use millstream_control::{Client, ClientError};

use super::finding::Finding;
use super::system::output;

/// Time limit for the daemon, and for programs that know the users of this host.
const LIMIT: Duration = Duration::from_secs(5);

/// A daemon that answers later than this is overloaded.
const SLOW: Duration = Duration::from_millis(500);

/// The socket of the packaged service.
const SERVICE_SOCKET: &str = "/run/millstream/millstreamd.sock";

/// What was found out about the daemon.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    socket: Option<PathBuf>,
    /// Whether a flag or a variable names the socket.
    is_given: bool,
    /// Whether the packaged service has a socket elsewhere.
    has_service_socket: bool,
    answer: Answer,
}

/// The result of a request.
#[derive(Clone, Debug)]
enum Answer {
    NoSocket,
    /// A file that is not a socket.
    NotASocket,
    /// A socket on which nobody listens.
    Stale,
    Denied(Access),
    TimedOut,
    Failed(String),
    /// An older version, which does not describe itself.
    Old,
    About(Box<AboutReply>, Duration),
}

/// Who may use a socket.
#[derive(Clone, Debug, Default)]
struct Access {
    /// The name of the socket's group, or its number.
    group: String,
    /// Whether the users' database has this user in the group.
    is_member: bool,
    user: String,
}

impl Facts {
    pub(super) async fn gather(socket: Option<&Path>, is_given: bool) -> Self {
        let service = Path::new(SERVICE_SOCKET);
        let has_service_socket =
            socket != Some(service) && is_socket(service).is_ok_and(|is_socket| is_socket);
        let answer = match socket {
            Some(socket) => match tokio::time::timeout(LIMIT, ask(socket)).await {
                Ok(answer) => answer,
                Err(_) => Answer::TimedOut,
            },
            None => Answer::NoSocket,
        };
        Self { socket: socket.map(Path::to_owned), is_given, has_service_socket, answer }
    }

    /// The daemon's description of itself.
    pub(super) fn about(&self) -> Option<&AboutReply> {
        match &self.answer {
            Answer::About(about, _) => Some(about),
            _ => None,
        }
    }

    pub(super) fn finding(&self) -> Finding {
        let Some(socket) = &self.socket else {
            return Finding::warn(
                "daemon",
                "the path of its socket is unknown",
                "set MILLSTREAM_SOCKET, or XDG_RUNTIME_DIR as a login session does",
            );
        };
        let socket = socket.display();
        match &self.answer {
            Answer::NoSocket | Answer::Stale if self.is_given => Finding::warn(
                "daemon",
                format!("no daemon listens on {socket}"),
                format!("sudo systemctl start millstreamd, or: millstreamd --socket {socket}"),
            ),
            Answer::NoSocket | Answer::Stale if self.has_service_socket => Finding::warn(
                "daemon",
                format!("no daemon listens on {socket}, but the service has a socket"),
                format!("export MILLSTREAM_SOCKET={SERVICE_SOCKET} (the package does so at login)"),
            ),
            Answer::NoSocket | Answer::Stale => {
                Finding::ok("daemon", format!("none on {socket}: `train` runs jobs in its own process"))
            }
            Answer::NotASocket => Finding::fail(
                "daemon",
                format!("{socket} is not a socket"),
                format!("mv {socket} {socket}.old, then start the daemon"),
            ),
            Answer::Denied(access) => access.finding(&socket.to_string()),
            Answer::TimedOut => Finding::fail(
                "daemon",
                format!("no answer on {socket} within {} s", LIMIT.as_secs()),
                "journalctl -u millstreamd -n 50, then: sudo systemctl restart millstreamd (jobs resume)",
            ),
            Answer::Failed(message) => {
                Finding::fail("daemon", message.clone(), "journalctl -u millstreamd -n 50")
            }
            Answer::Old => Finding::warn(
                "daemon",
                format!("older than this command, which is {}", env!("CARGO_PKG_VERSION")),
                "sudo systemctl restart millstreamd (jobs resume)",
            ),
            Answer::About(about, time) => answered(about, *time),
        }
    }
}

fn answered(about: &AboutReply, time: Duration) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    let AboutReply { version, pid, uid, .. } = about;
    let ms = time.as_secs_f64() * 1e3;
    let found = format!("version {version}, process {pid} of user {uid}, answers in {ms:.1} ms");
    let looks_only = about.role == "viewer";
    let finding = if version != ours {
        let advice = "sudo systemctl restart millstreamd (jobs resume), or install the same version of both";
        Finding::warn("daemon", format!("{found}; this command is {ours}"), advice)
    } else if time > SLOW {
        Finding::warn("daemon", found, "the host is overloaded: `top` shows by what")
    } else if looks_only {
        let group = about.operators.first().map_or("root", String::as_str);
        let advice = format!("sudo usermod -aG {group} \"$USER\", then log in again");
        Finding::warn("daemon", format!("{found}; this user may only look at jobs"), advice)
    } else {
        Finding::ok("daemon", found)
    };
    finding.with("answer_ms", ms)
}

impl Access {
    fn of(socket: &Path) -> Self {
        let gid = fs::metadata(socket).map(|found| found.gid().to_string()).unwrap_or_default();
        let user = output("id", &["-un"], LIMIT).unwrap_or_default().trim().to_owned();
        // With a name, `id` asks the database; without, the session.
        let groups = output("id", &["-G", &user], LIMIT).filter(|_| !user.is_empty()).unwrap_or_default();
        let group = output("getent", &["group", &gid], LIMIT);
        let group = group.and_then(|line| Some(line.split_once(':')?.0.to_owned()));
        let is_member = groups.split_whitespace().any(|group| group == gid);
        Self { group: group.unwrap_or(gid), is_member, user }
    }

    fn finding(&self, socket: &str) -> Finding {
        let Self { group, is_member, user } = self;
        if *is_member {
            let found =
                format!("{socket}: user {user} is in the group {group}, but this session began before");
            return Finding::fail("daemon", found, format!("log in again, or: newgrp {group}"));
        }
        let found = format!("{socket}: user {user} may not use it; members of the group {group} may");
        Finding::fail("daemon", found, format!("sudo usermod -aG {group} {user}, then log in again"))
    }
}

async fn ask(socket: &Path) -> Answer {
    match is_socket(socket) {
        Ok(true) => {}
        Ok(false) => return Answer::NotASocket,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Answer::NoSocket,
        // The connection reports it.
        Err(_) => {}
    }
    let began = Instant::now();
    let mut client = match Client::connect(socket).await {
        Ok(client) => client,
        Err(ClientError::NoDaemon { .. }) => return Answer::Stale,
        Err(ClientError::Denied { .. } | ClientError::Refused { .. }) => {
            return Answer::Denied(Access::of(socket));
        }
        Err(error) => return Answer::Failed(error.to_string()),
    };
    match client.about().await {
        Ok(about) => Answer::About(Box::new(about), began.elapsed()),
        // The daemon closes the connection of a user whom it does not admit, for example through a socket whose mode was
        // changed.
        Err(ClientError::Lost(_)) => Answer::Denied(Access::of(socket)),
        Err(ClientError::Failed(_)) => Answer::Old,
        Err(error) => Answer::Failed(error.to_string()),
    }
}

fn is_socket(path: &Path) -> io::Result<bool> {
    fs::metadata(path).map(|found| found.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn facts(answer: Answer) -> Facts {
        Facts { socket: Some("/a.sock".into()), is_given: false, has_service_socket: false, answer }
    }

    fn about(version: &str, ms: u64) -> Answer {
        let about = AboutReply { version: version.to_owned(), pid: 7, uid: 9, ..AboutReply::default() };
        Answer::About(Box::new(about), Duration::from_millis(ms))
    }

    #[test]
    fn a_missing_daemon_is_no_failure() {
        for answer in [Answer::NoSocket, Answer::Stale] {
            assert_eq!(facts(answer.clone()).finding().mark, Mark::Ok);
            let given = Facts { is_given: true, ..facts(answer.clone()) };
            assert_eq!(given.finding().mark, Mark::Warn);
            let elsewhere = Facts { has_service_socket: true, ..facts(answer) }.finding();
            assert_eq!(elsewhere.mark, Mark::Warn);
            assert!(elsewhere.advice.is_some_and(|advice| advice.contains(SERVICE_SOCKET)));
        }
        assert_eq!(Facts { socket: None, ..facts(Answer::NoSocket) }.finding().mark, Mark::Warn);
    }

    #[test]
    fn the_answer_decides_what_to_do() {
        let ours = env!("CARGO_PKG_VERSION");
        for (answer, mark, sign) in [
            (about(ours, 1), Mark::Ok, ""),
            (about("0.0.1", 1), Mark::Warn, "restart"),
            (about(ours, 900), Mark::Warn, "overloaded"),
            (Answer::Old, Mark::Warn, "restart"),
            (Answer::NotASocket, Mark::Fail, "mv /a.sock"),
            (Answer::TimedOut, Mark::Fail, "journalctl"),
            (Answer::Failed("no".to_owned()), Mark::Fail, "journalctl"),
        ] {
            let finding = facts(answer).finding();
            assert_eq!(finding.mark, mark, "{finding:?}");
            assert!(finding.advice.clone().unwrap_or_default().contains(sign), "{finding:?}");
        }
        let Answer::About(looking, time) = about(ours, 1) else { unreachable!() };
        let role = "viewer".to_owned();
        let looking = AboutReply { role, operators: vec!["mlops".to_owned()], ..*looking };
        let finding = facts(Answer::About(Box::new(looking), time)).finding();
        assert_eq!(finding.mark, Mark::Warn);
        assert!(finding.advice.is_some_and(|advice| advice.contains("-aG mlops")));
        let found = facts(about(ours, 2)).finding().found;
        assert_eq!(found, format!("version {ours}, process 7 of user 9, answers in 2.0 ms"));
    }

    #[test]
    fn a_member_of_the_group_logs_in_again_and_others_are_added() {
        let access = Access { group: "millstream".into(), is_member: true, user: "ann".into() };
        let advice = |access: Access| facts(Answer::Denied(access)).finding().advice.unwrap_or_default();
        assert_eq!(advice(access.clone()), "log in again, or: newgrp millstream");
        let other = Access { is_member: false, ..access };
        assert_eq!(advice(other), "sudo usermod -aG millstream ann, then log in again");
    }
}
