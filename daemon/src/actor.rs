//! Who changes a job: recorded in the job's log and in the daemon's.

use std::fmt;

use crate::roles::Call;
use crate::state::Owner;

/// The user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Actor {
    pub(crate) uid: u32,
}

/// What an actor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Submit,
    Cancel,
    Pause,
    Resume,
    Remove,
    Checkpoint,
}

impl Actor {
    /// The actor by number only.
    pub(crate) fn unnamed(self) -> Owner {
        Owner { uid: self.uid, name: None }
    }

    /// The actor as the owner of what it submits.
    pub(crate) fn owner(self) -> Owner {
        // Users of a directory service have no entry; then the number must do.
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Owner { uid: self.uid, name: name_in(&users, self.uid).map(str::to_owned) }
    }
}

impl Action {
    /// The call with which it is requested.
    pub(crate) fn call(self) -> Call {
        match self {
            Self::Submit => Call::Submit,
            Self::Cancel => Call::Cancel,
            Self::Pause => Call::Pause,
            Self::Resume => Call::Resume,
            Self::Remove => Call::Remove,
            Self::Checkpoint => Call::Checkpoint,
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner();
        match owner.name {
            Some(name) => write!(f, "{name} (uid {})", self.uid),
            None => owner.fmt(f),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Submit => "submitted by",
            Self::Cancel => "cancellation requested by",
            Self::Pause => "pause requested by",
            Self::Resume => "resumed by",
            Self::Remove => "removed by",
            Self::Checkpoint => "checkpoint requested by",
        })
    }
}

/// The name of user or group `uid` in `users`, the text of passwd(5) or group(5).
pub(crate) fn name_in(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
        (number.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_where_the_system_knows_them() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\nann:x:1001:1001::/home/ann:/bin/sh\n";
        assert_eq!(name_in(users, 1001), Some("ann"));
        assert_eq!(name_in(users, 7), None);
        assert_eq!(Actor { uid: 0 }.to_string(), "root (uid 0)");
        assert_eq!(Actor { uid: 4_000_000_007 }.to_string(), "uid 4000000007");
    }
}
