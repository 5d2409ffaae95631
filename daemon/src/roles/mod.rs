//! What each user of the control socket may do.
//!
//! Operators may do everything, viewers only look. The credentials of the connection and the configuration decide, again for
//! each request: a reload of the configuration also holds for open connections. [`Call`] says which role each call of the
//! API needs; [`Gate`] checks it before the request is read.

mod call;
mod gate;
mod limits;

use std::fmt;
use std::sync::{PoisonError, RwLock};

use anyhow::{Result, bail};

use crate::access::Credentials;
use crate::actor::name_in;
use crate::config::{RoleSettings, Viewers};

pub(crate) use call::{Call, needed_role};
pub(crate) use gate::Gate;

/// The system's database of groups.
const GROUPS: &str = "/etc/group";

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// See jobs, their progress and their metrics.
    Viewer,
    /// Everything.
    Operator,
}

impl Role {
    /// The name in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Who has which role. Root and the daemon's own user are always operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    operators: Vec<Group>,
    viewers: Audience,
    /// Whether all of them can open the socket because of its group.
    socket_suffices: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Audience {
    Nobody,
    Everyone,
    Groups(Vec<Group>),
}

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    gid: u32,
    name: Option<String>,
}

impl Policy {
    /// The policy that the configuration states, for a socket of this group.
    ///
    /// # Errors
    /// When the system does not know a group.
    pub(crate) fn of(settings: &RoleSettings, socket_group: u32) -> Result<Self> {
        // Groups of a directory service have no entry; then the configuration gives their number.
        Self::with(settings, socket_group, &std::fs::read_to_string(GROUPS).unwrap_or_default())
    }

    /// As [`Policy::of`], with the text of group(5).
    fn with(settings: &RoleSettings, socket_group: u32, known: &str) -> Result<Self> {
        let groups = |key: &str, names: &[String]| -> Result<Vec<Group>> {
            names.iter().map(|name| Group::named(name, key, known)).collect()
        };
        let operators = match &settings.operators {
            Some(names) => groups("operators", names)?,
            None => vec![Group { gid: socket_group, name: name_in(known, socket_group).map(str::to_owned) }],
        };
        let viewers = match &settings.viewers {
            Viewers::Nobody => Audience::Nobody,
            Viewers::Everyone => Audience::Everyone,
            Viewers::Groups(names) => Audience::Groups(groups("viewers", names)?),
        };
        let is_of_socket = |group: &Group| group.gid == socket_group;
        let socket_suffices = operators.iter().all(is_of_socket)
            && match &viewers {
                Audience::Nobody => true,
                Audience::Everyone => false,
                Audience::Groups(groups) => groups.iter().all(is_of_socket),
            };
        Ok(Self { operators, viewers, socket_suffices })
    }

    /// The role of a user; `None` for one who is refused.
    pub(crate) fn role_of(&self, peer: &Credentials) -> Option<Role> {
        let is_in = |groups: &[Group]| groups.iter().any(|group| peer.are_in(group.gid));
        if peer.are_trusted() || is_in(&self.operators) {
            return Some(Role::Operator);
        }
        let may_look = match &self.viewers {
            Audience::Nobody => false,
            Audience::Everyone => true,
            Audience::Groups(groups) => is_in(groups),
        };
        may_look.then_some(Role::Viewer)
    }

    /// Whether users outside of the socket's group have a role, who can open it only if its mode lets everybody.
    pub(crate) fn needs_open_socket(&self) -> bool {
        !self.socket_suffices
    }
}

impl Group {
    fn named(name: &str, key: &str, known: &str) -> Result<Self> {
        let entry = known.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        if let Some(gid) = entry {
            return Ok(Self { gid, name: Some(name.to_owned()) });
        }
        match name.parse() {
            Ok(gid) => Ok(Self { gid, name: name_in(known, gid).map(str::to_owned) }),
            Err(_) => bail!(
                "`{key}`: the group `{name}` is not in {GROUPS}; create it, or give the number of a group of a \
                 directory service"
            ),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => f.write_str(name),
            None => self.gid.fmt(f),
        }
    }
}

/// The policy in force.
#[derive(Debug)]
pub(crate) struct Roles(RwLock<Policy>);

impl Roles {
    pub(crate) fn new(policy: Policy) -> Self {
        Self(RwLock::new(policy))
    }

    /// The role of a user now; `None` for one who is refused.
    pub(crate) fn of(&self, peer: &Credentials) -> Option<Role> {
        self.read(|policy| policy.role_of(peer))
    }

    /// Changes the policy, for open connections too.
    pub(crate) fn set(&self, policy: Policy) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// The groups of operators, for messages.
    pub(crate) fn operators(&self) -> Vec<String> {
        self.read(|policy| policy.operators.iter().map(ToString::to_string).collect())
    }

    /// Who may change something, as a subject: `members of the group millstream and root`.
    pub(crate) fn who_operates(&self) -> String {
        match self.operators().as_slice() {
            [] => "root and the daemon's user".to_owned(),
            [group] => format!("members of the group {group} and root"),
            groups => format!("members of the groups {} and root", groups.join(", ")),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Policy) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KNOWN: &str = "root:x:0:\nmillstream:x:990:ann\ninterns:x:2000:\nbroken\nmlops:x:991:\n";
    const SOCKET_GROUP: u32 = 990;

    fn policy(operators: Option<&[&str]>, viewers: Viewers) -> Policy {
        let operators = operators.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let settings = RoleSettings { operators, viewers, ..RoleSettings::default() };
        Policy::with(&settings, SOCKET_GROUP, KNOWN).unwrap()
    }

    /// A user who is neither root nor the one who runs the test.
    fn user(groups: &[u32]) -> Credentials {
        let uid = rustix::process::geteuid().as_raw() + 4_000;
        Credentials::new(uid, 5_000, groups.to_vec())
    }

    #[test]
    fn by_default_the_group_of_the_socket_operates_and_others_are_refused() {
        let policy = Policy::with(&RoleSettings::default(), SOCKET_GROUP, KNOWN).unwrap();
        assert_eq!(policy.role_of(&user(&[7, SOCKET_GROUP])), Some(Role::Operator));
        assert_eq!(policy.role_of(&user(&[7])), None);
        assert!(!policy.needs_open_socket());
        let own = rustix::process::geteuid().as_raw();
        for uid in [0, own] {
            assert_eq!(policy.role_of(&Credentials::new(uid, 5_000, Vec::new())), Some(Role::Operator));
        }
        assert_eq!(Roles::new(policy).who_operates(), "members of the group millstream and root");
    }

    #[test]
    fn viewers_are_everyone_or_the_members_of_groups() {
        for (viewers, outsider, intern, is_open) in [
            (Viewers::Nobody, None, None, false),
            (Viewers::Everyone, Some(Role::Viewer), Some(Role::Viewer), true),
            (Viewers::Groups(vec!["interns".into()]), None, Some(Role::Viewer), true),
            (Viewers::Groups(vec!["2000".into()]), None, Some(Role::Viewer), true),
        ] {
            let policy = policy(None, viewers);
            assert_eq!(policy.role_of(&user(&[])), outsider, "{policy:?}");
            assert_eq!(policy.role_of(&user(&[2000])), intern, "{policy:?}");
            assert_eq!(policy.role_of(&user(&[2000, SOCKET_GROUP])), Some(Role::Operator));
            assert_eq!(policy.needs_open_socket(), is_open, "{policy:?}");
        }
    }

    #[test]
    fn operators_can_be_other_groups_than_that_of_the_socket() {
        let several = policy(Some(&["mlops", "1234"]), Viewers::Groups(vec!["millstream".into()]));
        assert_eq!(several.role_of(&user(&[991])), Some(Role::Operator));
        assert_eq!(several.role_of(&user(&[1234])), Some(Role::Operator));
        assert_eq!(several.role_of(&user(&[SOCKET_GROUP])), Some(Role::Viewer));
        assert!(several.needs_open_socket());
        let roles = Roles::new(several);
        assert_eq!(roles.who_operates(), "members of the groups mlops, 1234 and root");
        roles.set(policy(Some(&[]), Viewers::Nobody));
        assert_eq!(roles.of(&user(&[991])), None, "a change holds at once");
        assert_eq!(roles.who_operates(), "root and the daemon's user");
        assert!(!policy(Some(&["millstream"]), Viewers::Nobody).needs_open_socket());
    }

    #[test]
    fn an_unknown_group_is_an_error_that_names_the_key() {
        let settings = RoleSettings { operators: Some(vec!["mlop".into()]), ..RoleSettings::default() };
        let error = Policy::with(&settings, SOCKET_GROUP, KNOWN).unwrap_err().to_string();
        assert!(error.contains("`operators`") && error.contains("`mlop`"), "{error}");
        let settings =
            RoleSettings { viewers: Viewers::Groups(vec![String::new()]), ..RoleSettings::default() };
        assert!(Policy::with(&settings, SOCKET_GROUP, KNOWN).is_err());
    }
}
