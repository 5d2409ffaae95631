//! The stored objects.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The reads of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The number of reads, with or without a fault.
    pub requests: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) bytes: Bytes,
    pub(crate) generation: u64,
}

/// Objects by `bucket/key`.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    stored: BTreeMap<String, Stored>,
    served: BTreeMap<String, Served>,
    generation: u64,
}

impl Stored {
    pub(crate) fn tag(&self) -> String {
        format!("\"{:016x}\"", self.generation)
    }
}

impl Objects {
    pub(crate) fn put(&mut self, name: &str, bytes: Bytes) -> Stored {
        self.generation += 1;
        let stored = Stored { bytes, generation: self.generation };
        self.stored.insert(name.to_owned(), stored.clone());
        stored
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.stored.remove(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Stored> {
        self.stored.get(name).cloned()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.stored.keys().cloned().collect()
    }

    /// Counts a read.
    pub(crate) fn count(&mut self, name: &str) {
        self.served.entry(name.to_owned()).or_default().requests += 1;
    }

    /// Counts bytes of a read.
    pub(crate) fn add(&mut self, name: &str, bytes: u64) {
        self.served.entry(name.to_owned()).or_default().bytes += bytes;
    }

    pub(crate) fn served(&self, name: &str) -> Served {
        self.served.get(name).copied().unwrap_or_default()
    }

    /// Objects with names that start with `prefix` and are not below `from`, in order.
    pub(crate) fn from(&self, prefix: &str, from: String) -> impl Iterator<Item = (&String, &Stored)> {
        let prefix = prefix.to_owned();
        self.stored.range(from..).take_while(move |(name, _)| name.starts_with(&prefix))
    }
}
