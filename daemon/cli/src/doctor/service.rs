//! The systemd unit of the daemon, as `systemctl show` describes it.

use std::path::Path;
use std::time::Duration;

use super::finding::Finding;
use super::system::{output, value};

const UNIT: &str = "millstreamd.service";

/// Exists while systemd is the service manager (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// Time limit for systemd.
const LIMIT: Duration = Duration::from_secs(3);

const PROPERTIES: &str =
    "--property=LoadState,ActiveState,SubState,Result,NRestarts,NeedDaemonReload,PrivateTmp,UnitFileState";

/// What was found out about the unit.
#[derive(Clone, Debug)]
pub(super) enum Facts {
    /// Another service manager, or none, as in a container.
    NoSystemd,
    /// systemd does not answer.
    Silent,
    /// The properties of the unit.
    Shown(String),
}

impl Facts {
    pub(super) fn gather() -> Self {
        if !Path::new(BOOTED).is_dir() {
            return Self::NoSystemd;
        }
        output("systemctl", &["show", UNIT, PROPERTIES], LIMIT).map_or(Self::Silent, Self::Shown)
    }

    /// Whether the service has a private /tmp.
    pub(super) fn has_private_tmp(&self) -> bool {
        self.property("PrivateTmp") == "yes" && self.property("ActiveState") == "active"
    }

    fn property(&self, name: &str) -> &str {
        match self {
            Self::Shown(shown) => value(shown, name).unwrap_or_default(),
            Self::NoSystemd | Self::Silent => "",
        }
    }

    pub(super) fn finding(&self) -> Finding {
        match self {
            Self::NoSystemd => return Finding::skipped("service", "systemd does not run here"),
            Self::Silent => return Finding::skipped("service", "`systemctl show` does not answer"),
            Self::Shown(_) => {}
        }
        let [load, active, sub, result] =
            ["LoadState", "ActiveState", "SubState", "Result"].map(|name| self.property(name));
        let restarts = self.property("NRestarts").parse().unwrap_or(0_u32);
        let found = format!("{UNIT} is {active} ({sub})");
        match (load, active) {
            ("not-found", _) => Finding::skipped("service", format!("{UNIT} is not installed")),
            ("masked", _) => {
                Finding::warn("service", format!("{UNIT} is masked"), format!("sudo systemctl unmask {UNIT}"))
            }
            (_, "failed") => Finding::fail(
                "service",
                format!("{found}: {result}"),
                "journalctl -u millstreamd -n 50, then: sudo systemctl restart millstreamd",
            ),
            (_, "active") if self.property("NeedDaemonReload") == "yes" => Finding::warn(
                "service",
                format!("{found}, with a unit file that has changed since"),
                "sudo systemctl daemon-reload && sudo systemctl restart millstreamd",
            ),
            (_, "active") if restarts > 0 => Finding::warn(
                "service",
                format!("{found}, restarted {restarts} times after failures"),
                "journalctl -u millstreamd -p warning",
            ),
            (_, "active") => Finding::ok("service", found),
            (_, "activating" | "deactivating" | "reloading") => {
                Finding::warn("service", found, "journalctl -u millstreamd -f shows what it waits for")
            }
            _ => Finding::warn("service", found, "sudo systemctl enable --now millstreamd"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Mark;
    use super::*;

    fn shown(load: &str, active: &str, more: &str) -> Facts {
        Facts::Shown(format!(
            "LoadState={load}\nActiveState={active}\nSubState=x\nResult=exit-code\nPrivateTmp=yes\n{more}"
        ))
    }

    #[test]
    fn the_state_of_the_unit_decides() {
        for (facts, mark, sign) in [
            (Facts::NoSystemd, Mark::Skipped, ""),
            (Facts::Silent, Mark::Skipped, ""),
            (shown("not-found", "inactive", ""), Mark::Skipped, ""),
            (shown("loaded", "active", "NRestarts=0\n"), Mark::Ok, ""),
            (shown("loaded", "active", "NRestarts=3\n"), Mark::Warn, "journalctl"),
            (shown("loaded", "active", "NeedDaemonReload=yes\n"), Mark::Warn, "daemon-reload"),
            (shown("loaded", "activating", ""), Mark::Warn, "journalctl"),
            (shown("loaded", "inactive", ""), Mark::Warn, "enable --now"),
            (shown("loaded", "failed", ""), Mark::Fail, "restart"),
            (shown("masked", "inactive", ""), Mark::Warn, "unmask"),
        ] {
            let finding = facts.finding();
            assert_eq!(finding.mark, mark, "{finding:?}");
            assert!(finding.advice.clone().unwrap_or_default().contains(sign), "{finding:?}");
        }
        assert!(shown("loaded", "active", "").has_private_tmp());
        assert!(!shown("loaded", "inactive", "").has_private_tmp() && !Facts::NoSystemd.has_private_tmp());
    }
}
