//! The first layer: how long an uplink's interface gathers frames before it hands them to weir.
//!
//! What was found is restored when weir ends, and by the next weir if it was killed: see [`found`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use self::found::{Found, FoundError, Kept};
use crate::config::{InterfaceName, SocketPath, UplinkKind};
use crate::explain::UplinkLayer;

mod found;

/// Where the kernel has the settings of an interface.
const SYS_CLASS_NET: &str = "/sys/class/net";
/// The interval at which NAPI polls (ns), and how many polls in a row find nothing before the
/// interface's interrupts come back on (Linux 5.8; see `napi_defer_hard_irqs` in the kernel's
/// Documentation/networking/napi.rst).
const FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// See [`FLUSH_TIMEOUT`].
const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// Its number.
const IFINDEX: &str = "ifindex";
/// An empty poll costs about the interrupt that it saves, so few of them.
const EMPTY_POLLS: u64 = 2;

/// Why an interface is not as it was asked for.
#[derive(Debug, Error)]
enum UplinkError {
    /// A setting can't be read or written.
    #[error("{}: {source}", path.display())]
    Setting {
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was found can't be kept, and so nothing is changed.
    #[error(transparent)]
    Keep(#[from] FoundError),
}

/// The settings of one interface, under `/sys`.
#[derive(Debug)]
struct Interface {
    name: InterfaceName,
    dir: PathBuf,
}

impl Interface {
    fn in_sys(sys: &Path, name: &InterfaceName) -> Self {
        Self { name: name.clone(), dir: sys.join(name.as_str()) }
    }

    fn found(&self) -> Result<Found, UplinkError> {
        Ok(Found {
            interface: self.name.clone(),
            ifindex: self.read(IFINDEX)?,
            gro_flush_timeout: self.read(FLUSH_TIMEOUT)?,
            napi_defer_hard_irqs: self.read(DEFER_HARD_IRQS)?,
        })
    }

    /// The interval first: a number of polls alone would be polls at no distance.
    fn gather(&self, uplink_ns: u64) -> Result<(), UplinkError> {
        self.write(FLUSH_TIMEOUT, uplink_ns)?;
        self.write(DEFER_HARD_IRQS, EMPTY_POLLS)
    }

    /// As it was found; whether that interface is still there. One that is gone has taken its settings with
    /// it, and another one may have its name now.
    fn restore(&self, found: &Found) -> Result<bool, UplinkError> {
        match self.read::<u32>(IFINDEX) {
            Ok(ifindex) if ifindex == found.ifindex => {}
            Ok(_) => return Ok(false),
            Err(UplinkError::Setting { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        let polls = self.write(DEFER_HARD_IRQS, found.napi_defer_hard_irqs);
        // Also where the other one can't be.
        self.write(FLUSH_TIMEOUT, found.gro_flush_timeout)?;
        polls.map(|()| true)
    }

    fn read<T: std::str::FromStr>(&self, name: &str) -> Result<T, UplinkError>
    where
        T::Err: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = self.dir.join(name);
        let text = fs::read_to_string(&path);
        let value = text.and_then(|text| text.trim().parse().map_err(io::Error::other));
        value.map_err(|source| UplinkError::Setting { path, source })
    }

    fn write(&self, name: &str, value: u64) -> Result<(), UplinkError> {
        let path = self.dir.join(name);
        let written = fs::write(&path, value.to_string());
        written.map_err(|source| UplinkError::Setting { path, source })
    }
}

/// Makes interfaces as they were found that a weir with this control socket has left changed when it was
/// killed. What cannot be restored is logged, and stays for the next start.
pub(crate) fn restore_left_over(control: &SocketPath) {
    restore_left_over_in(Path::new(SYS_CLASS_NET), control);
}

fn restore_left_over_in(sys: &Path, control: &SocketPath) {
    for left in found::left_over(control) {
        let restored = left.map_err(UplinkError::from).and_then(|(found, kept)| {
            let there = Interface::in_sys(sys, &found.interface).restore(&found)?;
            kept.remove();
            Ok((found, there))
        });
        match restored {
            Ok((found, true)) => tracing::info!(
                interface = %found.interface,
                gro_flush_timeout = found.gro_flush_timeout,
                napi_defer_hard_irqs = found.napi_defer_hard_irqs,
                "restored what a weir that was killed had changed"
            ),
            Ok((found, false)) => tracing::info!(
                interface = %found.interface,
                "is gone, which a weir that was killed had changed"
            ),
            Err(error) => tracing::error!(
                %error,
                "an interface that a weir has left changed cannot be restored; restore it by hand and remove \
                 the file"
            ),
        }
    }
}

/// An uplink's interface. Dropping it restores what was found.
#[derive(Debug)]
pub(super) struct UplinkInterface {
    interface: Interface,
    control: SocketPath,
    /// What was found before anything was changed.
    found: Option<(Found, Kept)>,
    layer: UplinkLayer,
}

impl UplinkInterface {
    /// Of a weir with this control socket.
    pub(super) fn new(kind: &UplinkKind, control: &SocketPath) -> Self {
        Self::in_sys(Path::new(SYS_CLASS_NET), kind, control)
    }

    fn in_sys(sys: &Path, kind: &UplinkKind, control: &SocketPath) -> Self {
        let layer = match kind {
            // The host's frames wait in the TAP's queue until a worker reads them; there is no driver
            // with interrupts whose timer would apply to them.
            UplinkKind::Tap { .. } => UplinkLayer::WorkerOnly,
            UplinkKind::AfPacket { .. } | UplinkKind::AfXdp { .. } => UplinkLayer::AsFound,
        };
        let interface = Interface::in_sys(sys, kind.interface());
        Self { interface, control: control.clone(), found: None, layer }
    }

    /// What it does now.
    pub(super) fn layer(&self) -> &UplinkLayer {
        &self.layer
    }

    /// Whether it can be made to gather, as far as is known.
    pub(super) fn is_settable(&self) -> bool {
        matches!(self.layer, UplinkLayer::AsFound | UplinkLayer::Gathers { .. })
    }

    /// Gathers for `uplink_ns` from now on; with 0, for as long as it was found to.
    pub(super) fn set(&mut self, uplink_ns: u64) {
        let wanted = match uplink_ns {
            0 => UplinkLayer::AsFound,
            uplink_ns => UplinkLayer::Gathers { uplink_ns },
        };
        if !self.is_settable() || self.layer == wanted {
            return;
        }
        let done = match uplink_ns {
            0 => self.restore(),
            uplink_ns => self.gather(uplink_ns),
        };
        match done {
            Ok(()) => self.layer = wanted,
            Err(error) => {
                self.restore_or_warn();
                let reason = error.to_string();
                tracing::warn!(reason, "the uplink cannot be made to gather frames");
                self.layer = UplinkLayer::Refused { reason };
            }
        }
    }

    fn gather(&mut self, uplink_ns: u64) -> Result<(), UplinkError> {
        if self.found.is_none() {
            let found = self.interface.found()?;
            let kept = Kept::write(&self.control, &found)?;
            self.found = Some((found, kept));
        }
        self.interface.gather(uplink_ns)
    }

    /// If it fails, the file stays: the next weir tries again.
    fn restore(&mut self) -> Result<(), UplinkError> {
        if let Some((found, kept)) = self.found.take() {
            self.interface.restore(&found)?;
            kept.remove();
        }
        Ok(())
    }

    fn restore_or_warn(&mut self) {
        if let Err(error) = self.restore() {
            let interface = &self.interface.name;
            tracing::warn!(%interface, %error, "the uplink's settings cannot be restored");
        }
    }
}

impl Drop for UplinkInterface {
    fn drop(&mut self) {
        self.restore_or_warn();
    }
}

#[cfg(test)]
mod tests;
