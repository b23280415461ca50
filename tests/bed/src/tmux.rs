//! A terminal: tmux with its own server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    process::{Placement, Process, run, wait_until},
    workspace::socket_path,
};

/// Longest time until the server listens.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The name of the only window.
const WINDOW: &str = "top";

/// A terminal in which one command runs. The command ends when the terminal is dropped.
pub struct Terminal {
    _server: Process,
    socket: PathBuf,
}

impl Terminal {
    /// Runs `command` (for a shell) in a terminal of `columns` and `lines`. Files go into `dir`.
    pub fn start(dir: &Path, [columns, lines]: [u16; 2], command: &str) -> Result<Self> {
        let socket = socket_path(dir, "tmux.sock")?;
        // A client would take a stale socket for a server that must be started.
        let _ = fs::remove_file(&socket);
        let at = socket.to_string_lossy();
        // tmux runs in the foreground, so that it ends with this process, and without a user's settings.
        let argv = ["tmux", "-S", &*at, "-f", "/dev/null", "-D"];
        let mut server =
            Process::start_logged(&argv, &Placement::default(), &dir.join("tmux.log"))?;
        wait_until("tmux's socket", START_PATIENCE, || {
            server.check_alive()?;
            Ok(socket.exists())
        })?;
        let terminal = Self { _server: server, socket };
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let size = ["-x", &*columns, "-y", &*lines];
        terminal.tmux(&[&["new-session", "-d", "-s", WINDOW], &size[..], &[command]].concat())?;
        Ok(terminal)
    }

    /// Presses keys, by their names in tmux. Other text is typed.
    pub fn press(&self, keys: &[&str]) -> Result<()> {
        self.tmux(&[&["send-keys", "-t", WINDOW], keys].concat()).map(drop)
    }

    /// Resizes the terminal.
    pub fn resize(&self, [columns, lines]: [u16; 2]) -> Result<()> {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        self.tmux(&["resize-window", "-t", WINDOW, "-x", &columns, "-y", &lines]).map(drop)
    }

    /// The text on the screen.
    pub fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p", "-t", WINDOW])
    }

    /// The process in the terminal.
    pub fn pid(&self) -> Result<u32> {
        let said = self.tmux(&["display-message", "-p", "-t", WINDOW, "#{pane_pid}"])?;
        said.trim().parse().map_err(|_| Error::parse("a process id", said))
    }

    /// Waits until the screen is as wanted. Returns its text.
    pub fn await_screen(
        &self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut seen = String::new();
        let waited = wait_until(what, patience, || {
            seen = self.screen()?;
            Ok(wanted(&seen))
        });
        waited.map_err(|error| Error::Check(format!("{error}; the screen:\n{seen}")))?;
        Ok(seen)
    }

    fn tmux(&self, command: &[&str]) -> Result<String> {
        let socket = self.socket.to_string_lossy();
        run(&[&["tmux", "-S", &*socket], command].concat())
    }
}
