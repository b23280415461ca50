//! Messages to the service manager (sd_notify(3)).
//!
//! The socket is connected before weir is confined. After that weir can open no socket, so a library that opens one
//! for each message does not work.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// The service manager that started this process. Without one, messages are discarded.
#[derive(Clone, Debug, Default)]
pub struct Service {
    socket: Option<Arc<UnixDatagram>>,
    watchdog: Option<Duration>,
}

impl Service {
    /// The service manager that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let Some(path) = variable("NOTIFY_SOCKET") else { return Self::default() };
        let other = number("WATCHDOG_PID").is_some_and(|pid| pid != u64::from(std::process::id()));
        let usecs = number("WATCHDOG_USEC").filter(|usecs| *usecs > 0 && !other);
        match connect(&path) {
            Ok(socket) => {
                Self { socket: Some(Arc::new(socket)), watchdog: usecs.map(Duration::from_micros) }
            }
            Err(error) => {
                tracing::warn!(?path, %error, "cannot reach the service manager's socket");
                Self::default()
            }
        }
    }

    /// The interval within which the service manager requires a message that this process is alive, if it does.
    pub(super) fn wants_news_every(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that weir serves.
    pub fn is_ready(&self) {
        self.say("READY=1");
    }

    /// Reports that weir reloads its configuration, until it is ready again.
    pub fn is_reloading(&self) {
        let usecs = weir_engine::clock::now_ns() / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={usecs}"));
    }

    /// Reports that another process is weir now.
    pub fn goes_on_as(&self, process: u32) {
        self.say(&format!("MAINPID={process}"));
    }

    /// Reports that weir ends.
    pub fn is_stopping(&self) {
        self.say("STOPPING=1");
    }

    pub(super) fn is_alive(&self) {
        if self.watchdog.is_some() {
            self.say("WATCHDOG=1");
        }
    }

    /// Sends a message. A service manager that does not read loses it, and never blocks weir.
    fn say(&self, news: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(news.as_bytes())
        {
            tracing::debug!(news, %error, "the service manager was not told");
        }
    }
}

/// Connects to a path, or to a name in the abstract name space, which begins with an `@`.
fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
