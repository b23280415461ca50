//! The first layer: how long an uplink's interface gathers frames before it hands them to weir.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::UplinkKind;
use crate::explain::UplinkLayer;

/// Where the kernel has the settings of an interface.
const SYS_CLASS_NET: &str = "/sys/class/net";
/// The interval at which NAPI polls (ns), and how many polls in a row find nothing before the
/// interface's interrupts come back on (Linux 5.8; see `napi_defer_hard_irqs` in the kernel's
/// Documentation/networking/napi.rst).
const SETTINGS: [&str; 2] = ["gro_flush_timeout", "napi_defer_hard_irqs"];
/// An empty poll costs about the interrupt that it saves, so few of them.
const EMPTY_POLLS: u64 = 2;

/// An uplink's interface. Dropping it restores what was found.
#[derive(Debug)]
pub(super) struct UplinkInterface {
    dir: PathBuf,
    /// What was found before anything was changed.
    found: Option<[u64; 2]>,
    layer: UplinkLayer,
}

impl UplinkInterface {
    pub(super) fn new(kind: &UplinkKind) -> Self {
        Self::in_sys(Path::new(SYS_CLASS_NET), kind)
    }

    fn in_sys(sys: &Path, kind: &UplinkKind) -> Self {
        let layer = match kind {
            // The host's frames wait in the TAP's queue until a worker reads them; there is no driver
            // with interrupts whose timer would apply to them.
            UplinkKind::Tap { .. } => UplinkLayer::WorkerOnly,
            UplinkKind::AfPacket { .. } | UplinkKind::AfXdp { .. } => UplinkLayer::AsFound,
        };
        Self { dir: sys.join(kind.interface().as_str()), found: None, layer }
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
        match self.write(uplink_ns) {
            Ok(()) => self.layer = wanted,
            Err(error) => {
                self.restore();
                let reason = format!("{}: {error}", self.dir.display());
                tracing::warn!(reason, "the uplink cannot be made to gather frames");
                self.layer = UplinkLayer::Refused { reason };
            }
        }
    }

    fn write(&mut self, uplink_ns: u64) -> io::Result<()> {
        if uplink_ns == 0 {
            return self.found.map_or(Ok(()), |found| self.write_both(found));
        }
        if self.found.is_none() {
            let [interval, polls] = SETTINGS;
            self.found = Some([self.read(interval)?, self.read(polls)?]);
        }
        self.write_both([uplink_ns, EMPTY_POLLS])
    }

    /// The interval first: a number of polls alone would be polls at no distance.
    fn write_both(&self, values: [u64; 2]) -> io::Result<()> {
        let set = |(name, value): (&str, u64)| fs::write(self.dir.join(name), value.to_string());
        SETTINGS.into_iter().zip(values).try_for_each(set)
    }

    fn read(&self, name: &str) -> io::Result<u64> {
        fs::read_to_string(self.dir.join(name))?.trim().parse().map_err(io::Error::other)
    }

    fn restore(&mut self) {
        if let Some(found) = self.found.take()
            && let Err(error) = self.write_both(found)
        {
            let interface = self.dir.display();
            tracing::warn!(%interface, %error, "the uplink's settings cannot be restored");
        }
    }
}

impl Drop for UplinkInterface {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> UplinkKind {
        let queues = 1.try_into().unwrap();
        UplinkKind::AfPacket { interface: "eth7".parse().unwrap(), queues }
    }

    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir(sys.path().join("eth7")).unwrap();
        write(sys.path(), [20_000, 0]);
        sys
    }

    fn write(sys: &Path, values: [u64; 2]) {
        for (name, value) in SETTINGS.into_iter().zip(values) {
            fs::write(sys.join("eth7").join(name), format!("{value}\n")).unwrap();
        }
    }

    fn read(sys: &Path) -> [u64; 2] {
        SETTINGS.map(|name| {
            let text = fs::read_to_string(sys.join("eth7").join(name)).unwrap();
            text.trim().parse().unwrap()
        })
    }

    #[test]
    fn an_interface_gathers_and_is_left_as_it_was_found() {
        let sys = sys();
        let mut uplink = UplinkInterface::in_sys(sys.path(), &packet());
        uplink.set(300_000);
        assert_eq!(read(sys.path()), [300_000, EMPTY_POLLS]);
        uplink.set(200_000);
        assert_eq!(read(sys.path()), [200_000, EMPTY_POLLS]);
        uplink.set(0);
        assert_eq!((read(sys.path()), uplink.layer()), ([20_000, 0], &UplinkLayer::AsFound));
        uplink.set(100_000);
        drop(uplink);
        assert_eq!(read(sys.path()), [20_000, 0]);
    }

    #[test]
    fn what_is_never_set_is_never_written() {
        let sys = sys();
        let mut uplink = UplinkInterface::in_sys(sys.path(), &packet());
        uplink.set(0);
        write(sys.path(), [5, 6]);
        drop(uplink);
        assert_eq!(read(sys.path()), [5, 6]);
    }

    #[test]
    fn a_refusal_is_told_and_half_a_setting_is_undone() {
        let sys = sys();
        let mut uplink = UplinkInterface::in_sys(sys.path(), &packet());
        uplink.set(100_000);
        fs::remove_file(sys.path().join("eth7").join(SETTINGS[1])).unwrap();
        fs::create_dir(sys.path().join("eth7").join(SETTINGS[1])).unwrap();
        uplink.set(300_000);
        assert!(matches!(uplink.layer(), UplinkLayer::Refused { .. }), "{:?}", uplink.layer());
        assert!(!uplink.is_settable());
        let interval = fs::read_to_string(sys.path().join("eth7").join(SETTINGS[0])).unwrap();
        assert_eq!(interval, "20000");
    }

    #[test]
    fn a_tap_has_no_interval() {
        let kind =
            UplinkKind::Tap { interface: "weir0".parse().unwrap(), queues: 1.try_into().unwrap() };
        let mut uplink = UplinkInterface::in_sys(Path::new("/nonexistent"), &kind);
        uplink.set(100_000);
        assert_eq!((uplink.layer(), uplink.is_settable()), (&UplinkLayer::WorkerOnly, false));
    }
}
