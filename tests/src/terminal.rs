//! Commands in a terminal: a pseudo-terminal of the kernel, whose output is read and whose keys are pressed.

// Test support: a panic fails the test.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::programs::wait_until;

/// A command with a terminal as its standard input and output. Killed when dropped.
pub struct InTerminal {
    child: Child,
    keys: File,
    output: Arc<Mutex<String>>,
    /// Adds to `output` until the terminal is closed.
    reader: JoinHandle<()>,
}

impl InTerminal {
    /// Starts `command` in a terminal of this size.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        tcsetwinsize(&near, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&near, Vec::new()).unwrap();
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let far = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(OsStr::from_bytes(name.as_bytes()));
        let far = far.unwrap();
        command.env("TERM", "xterm-256color");
        command.stdin(far.try_clone().unwrap()).stdout(far.try_clone().unwrap()).stderr(far);
        let child = command.spawn().unwrap();
        // Holds the other end, which would keep the terminal from closing.
        drop(command);
        let keys = File::from(near);
        let output = Arc::new(Mutex::new(String::new()));
        let (mut reader, shared) = (keys.try_clone().unwrap(), output.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error once the other end is closed.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                shared.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { child, keys, output, reader }
    }

    /// Presses keys.
    ///
    /// # Panics
    /// If the command has closed its terminal.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the command has printed `text`, without escape sequences within it.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_for(&self, text: &str) {
        wait_until(text, || self.output.lock().unwrap().contains(text));
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the command has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; returns the exit status and everything printed.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let mut status = None;
        wait_until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // What it printed last may not have been read yet.
        wait_until("its terminal is closed", || self.reader.is_finished());
        let printed = self.output.lock().unwrap().clone();
        (status.unwrap(), printed)
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
