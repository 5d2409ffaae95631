//! The calls of the API, and the role that each one needs.

use super::Role;
use crate::standard_services::{self, CONTROL};

/// A call of the control API. A test compares them with the API's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Submit,
    About,
    List,
    Show,
    Logs,
    Watch,
    History,
    Explain,
    Profile,
    Cancel,
    Pause,
    Resume,
    Remove,
    Checkpoint,
    Metrics,
    Snapshot,
    Web,
    Audit,
    Peers,
    MeasurePeers,
    Trials,
    Feeds,
    Evaluate,
    Predict,
}

impl Call {
    const ALL: [Self; 24] = [
        Self::Submit,
        Self::About,
        Self::List,
        Self::Show,
        Self::Logs,
        Self::Watch,
        Self::History,
        Self::Explain,
        Self::Profile,
        Self::Cancel,
        Self::Pause,
        Self::Resume,
        Self::Remove,
        Self::Checkpoint,
        Self::Metrics,
        Self::Snapshot,
        Self::Web,
        Self::Audit,
        Self::Peers,
        Self::MeasurePeers,
        Self::Trials,
        Self::Feeds,
        Self::Evaluate,
        Self::Predict,
    ];

    /// The call of this path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let (service, method) = split(path)?;
        Self::ALL.into_iter().find(|call| service == CONTROL && call.method() == method)
    }

    /// The role that it needs.
    fn needs(self) -> Role {
        match self {
            // What viewers see has no paths and no reasons of failures, which may quote data.
            Self::About | Self::List | Self::Show | Self::Watch | Self::History | Self::Explain => {
                Role::Viewer
            }
            // As on the port for Prometheus.
            Self::Metrics | Self::Snapshot => Role::Viewer,
            // Names of hosts and sums over their jobs.
            Self::Peers => Role::Viewer,
            // Has no paths. The names of runs are for operators.
            Self::Feeds => Role::Viewer,
            // Loads the network and the other hosts.
            Self::MeasurePeers => Role::Operator,
            // Lines of logs name files and quote data.
            Self::Logs => Role::Operator,
            // The page shows logs, and opens a port.
            Self::Web => Role::Operator,
            // Names the other users' programs, and quotes errors.
            Self::Audit => Role::Operator,
            // Has reasons of failures, and the job file of the best trial.
            Self::Trials => Role::Operator,
            // Records within the worker, which it slows down.
            Self::Profile => Role::Operator,
            Self::Submit | Self::Cancel | Self::Pause | Self::Resume | Self::Remove | Self::Checkpoint => {
                Role::Operator
            }
            // Read data with the rights of the daemon.
            Self::Evaluate | Self::Predict => Role::Operator,
        }
    }

    /// The method in the API.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Submit => "Submit",
            Self::About => "About",
            Self::List => "List",
            Self::Show => "Show",
            Self::Logs => "Logs",
            Self::Watch => "Watch",
            Self::History => "History",
            Self::Explain => "Explain",
            Self::Profile => "Profile",
            Self::Cancel => "Cancel",
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::Remove => "Remove",
            Self::Checkpoint => "Checkpoint",
            Self::Metrics => "Metrics",
            Self::Snapshot => "Snapshot",
            Self::Web => "Web",
            Self::Audit => "Audit",
            Self::Peers => "Peers",
            Self::MeasurePeers => "MeasurePeers",
            Self::Trials => "Trials",
            Self::Feeds => "Feeds",
            Self::Evaluate => "Evaluate",
            Self::Predict => "Predict",
        }
    }

    /// The name in lower case, as that of most commands.
    pub(crate) fn command(self) -> String {
        self.method().to_ascii_lowercase()
    }
}

/// The role that the request of this path needs. A path that is not known here needs the highest.
pub(crate) fn needed_role(path: &str) -> Role {
    match Call::of_path(path) {
        Some(call) => call.needs(),
        None if split(path).is_some_and(|(service, _)| standard_services::SERVICES.contains(&service)) => {
            Role::Viewer
        }
        None => Role::Operator,
    }
}

/// The service and the method of a path.
fn split(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.split_once('/')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use millstream_control::DESCRIPTORS;
    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_call_of_the_definition_needs_a_stated_role() {
        let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
        let mut defined = BTreeSet::new();
        for file in &files {
            for service in &file.service {
                let service_name = format!("{}.{}", file.package(), service.name());
                assert_eq!(service_name, CONTROL, "a service without roles");
                defined.extend(service.method.iter().map(|method| method.name().to_owned()));
            }
        }
        let known: BTreeSet<_> = Call::ALL.iter().map(|call| call.method().to_owned()).collect();
        assert_eq!(known, defined);
        assert_eq!(known.len(), Call::ALL.len(), "each call once");
        for name in &defined {
            let call = Call::of_path(&format!("/{CONTROL}/{name}")).unwrap();
            assert_eq!(call.method(), name);
        }
    }

    #[test]
    fn viewers_only_look_and_unknown_paths_need_an_operator() {
        let open = [
            Call::About,
            Call::List,
            Call::Show,
            Call::Watch,
            Call::History,
            Call::Explain,
            Call::Metrics,
            Call::Snapshot,
            Call::Peers,
            Call::Feeds,
        ];
        for call in Call::ALL {
            let wanted = if open.contains(&call) { Role::Viewer } else { Role::Operator };
            assert_eq!(needed_role(&format!("/{CONTROL}/{}", call.method())), wanted, "{call:?}");
        }
        for service in standard_services::SERVICES {
            assert_eq!(needed_role(&format!("/{service}/Any")), Role::Viewer, "{service}");
        }
        for path in ["", "/", "List", "/List", "/other.Control/List", "/millstream.control.v1.Control/Lists"]
        {
            assert_eq!(needed_role(path), Role::Operator, "{path}");
        }
    }
}
