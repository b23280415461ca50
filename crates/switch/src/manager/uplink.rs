//! The first layer: how long an uplink's interface gathers frames before weir gets them.
//!
//! A network card does so by its `rx-usecs`; without it, the interface's NAPI timer does. The original settings are
//! restored when weir ends, or by the next weir after a SIGKILL: see [`found`].

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;
use weir_config::{InterfaceName, SocketPath, UplinkKind};

use self::ethtool::{Coalescing, Ethtool};
use self::found::{Found, FoundError, Kept, NapiTimer, Settings};
use crate::explain::{Gatherer, UplinkLayer};

mod ethtool;
mod found;

/// Where the kernel has the settings of an interface.
const SYS_CLASS_NET: &str = "/sys/class/net";
/// The interval of NAPI polls (ns), and the number of empty polls in a row before interrupts come back on (Linux
/// 5.8; see `napi_defer_hard_irqs` in the kernel's Documentation/networking/napi.rst).
const FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// See [`FLUSH_TIMEOUT`].
const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// Its number.
const IFINDEX: &str = "ifindex";
/// An empty poll costs about the interrupt that it saves, so few of them.
const EMPTY_POLLS: u64 = 2;
/// The smallest `rx-usecs` that weir sets: drivers change smaller values (Intel's take 1 and 3 for intervals of
/// their own).
const RX_USECS_MIN: u32 = 10;
/// Tries at a driver that rounds up: first a 64th less, then each time twice that reduction. An e1000e's steps are
/// a 50th of an interval of 5 ms.
const RX_USECS_TRIES: u32 = 5;
const RX_USECS_LESS: u32 = 64;
const NS_PER_US: u64 = 1_000;

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
    /// The card can't be asked, or refuses.
    #[error(transparent)]
    Card(#[from] io::Error),
    /// It makes more of `rx-usecs` than the budget leaves.
    #[error("{asked} us became {became} us")]
    Longer {
        /// What was asked for last.
        asked: u32,
        /// What the card has then.
        became: u32,
    },
}

/// Network cards; played ones in tests.
trait Nic: fmt::Debug + Send {
    /// What it has now; `None` where there is no `rx-usecs`.
    fn coalescing(&self, interface: &InterfaceName) -> io::Result<Option<Coalescing>>;

    /// A driver may round it.
    fn set_rx_usecs(&self, interface: &InterfaceName, usecs: u32) -> io::Result<()>;
}

/// The settings of one interface: under `/sys`, and its card's.
#[derive(Debug)]
struct Interface<'n> {
    name: InterfaceName,
    dir: PathBuf,
    nic: &'n dyn Nic,
}

impl Interface<'_> {
    /// The card's `rx-usecs`, if it is weir's to set; or why it isn't.
    fn card_usecs(&self) -> Result<u32, String> {
        match self.nic.coalescing(&self.name) {
            // To switch that off and on again has some drivers open all queues anew.
            Ok(Some(Coalescing { adaptive: true, .. })) => Err("adaptive-rx is on".into()),
            // Polls on that timer keep the card's interrupts masked.
            Ok(Some(_)) if self.read(DEFER_HARD_IRQS).is_ok_and(|polls: u64| polls > 0) => {
                Err(format!("the host has it set, by {DEFER_HARD_IRQS}"))
            }
            Ok(Some(Coalescing { rx_usecs, .. })) => Ok(rx_usecs),
            Ok(None) => Err("the driver has no rx-usecs".into()),
            Err(error) => Err(format!("rx-usecs: {error}")),
        }
    }

    fn found(&self, settings: Settings) -> Result<Found, UplinkError> {
        Ok(Found { interface: self.name.clone(), ifindex: self.read(IFINDEX)?, settings })
    }

    fn napi_timer(&self) -> Result<NapiTimer, UplinkError> {
        Ok(NapiTimer {
            gro_flush_timeout: self.read(FLUSH_TIMEOUT)?,
            napi_defer_hard_irqs: self.read(DEFER_HARD_IRQS)?,
        })
    }

    /// The card gathers for `usecs`, or for less where its driver rounds; for how long, as it says.
    fn gather_by_card(&self, usecs: u32) -> Result<u32, UplinkError> {
        let (mut asked, mut became, mut less) = (usecs, 0, 0_u32);
        for _ in 0..RX_USECS_TRIES {
            self.nic.set_rx_usecs(&self.name, asked)?;
            became = self.rx_usecs()?;
            if became <= usecs {
                return Ok(became);
            }
            less = less.saturating_mul(2).max(usecs / RX_USECS_LESS).max(became - usecs);
            match asked.checked_sub(less) {
                Some(next) if next >= RX_USECS_MIN => asked = next,
                _ => break,
            }
        }
        Err(UplinkError::Longer { asked, became })
    }

    fn rx_usecs(&self) -> Result<u32, UplinkError> {
        let now = self.nic.coalescing(&self.name)?;
        Ok(now.ok_or(io::Error::from(Errno::OPNOTSUPP))?.rx_usecs)
    }

    /// The interval first: a number of polls alone would be polls at no distance.
    fn gather_by_timer(&self, uplink_ns: u64) -> Result<(), UplinkError> {
        self.write(FLUSH_TIMEOUT, uplink_ns)?;
        self.write(DEFER_HARD_IRQS, EMPTY_POLLS)
    }

    /// Restores it; returns whether the interface still exists. A gone one took its settings, and another may have
    /// its name.
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
        match found.settings {
            Settings::NapiTimer(found) => {
                let polls = self.write(DEFER_HARD_IRQS, found.napi_defer_hard_irqs);
                // Also where the other one can't be.
                self.write(FLUSH_TIMEOUT, found.gro_flush_timeout)?;
                polls?;
            }
            // A driver that refuses to be set has nothing to be restored.
            Settings::RxUsecs(found) if self.rx_usecs()? == found => {}
            Settings::RxUsecs(found) => self.nic.set_rx_usecs(&self.name, found)?,
        }
        Ok(true)
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

/// Where interfaces' settings are, and whose.
#[derive(Debug)]
struct Host {
    sys: PathBuf,
    nic: Box<dyn Nic>,
}

impl Host {
    fn this() -> Self {
        Self { sys: SYS_CLASS_NET.into(), nic: Box::new(Ethtool) }
    }

    fn interface(&self, name: &InterfaceName) -> Interface<'_> {
        Interface { name: name.clone(), dir: self.sys.join(name.as_str()), nic: &*self.nic }
    }
}

/// Restores interfaces that a killed weir with this control socket has left changed. Failures are logged, and stay
/// for the next start.
pub(crate) fn restore_left_over(control: &SocketPath) {
    restore_left_over_on(&Host::this(), control);
}

fn restore_left_over_on(host: &Host, control: &SocketPath) {
    for left in found::left_over(control) {
        let restored = left.map_err(UplinkError::from).and_then(|(found, kept)| {
            let there = host.interface(&found.interface).restore(&found)?;
            kept.remove();
            Ok((found, there))
        });
        match restored {
            Ok((found, true)) => tracing::info!(
                interface = %found.interface,
                settings = ?found.settings,
                "restored an interface that a killed weir had changed"
            ),
            Ok((found, false)) => tracing::info!(
                interface = %found.interface,
                "an interface that a killed weir had changed is gone"
            ),
            Err(error) => tracing::error!(
                %error,
                "cannot restore an interface that a killed weir had changed; restore it by hand and remove \
                 the file"
            ),
        }
    }
}

/// How an interface is made to gather.
#[derive(Debug)]
enum Way {
    /// By its card.
    Card {
        /// Its `rx-usecs`.
        found_usecs: u32,
    },
    /// By its NAPI timer.
    Timer {
        /// Why not by its card.
        why: String,
    },
}

/// Once for each uplink: it stays so.
fn say_by_timer(interface: &InterfaceName, why: &str) {
    tracing::info!(%interface, why, "the uplink coalesces interrupts by its NAPI timer, not by its card");
}

/// An uplink's interface, as it can be made to gather frames. Dropped, it is as it was found.
pub(crate) trait Gathering: fmt::Debug + Send {
    /// What it does now.
    fn layer(&self) -> &UplinkLayer;

    /// Its original coalescing (ns), if known: an unset NAPI timer has none.
    fn found_ns(&self) -> u64;

    /// Gathers for `uplink_ns` from now on, or for a little less; with 0, for as long as it was found to.
    fn set(&mut self, uplink_ns: u64);

    /// Whether it can be made to gather, as far as is known.
    fn is_settable(&self) -> bool {
        matches!(self.layer(), UplinkLayer::AsFound | UplinkLayer::Gathers { .. })
    }
}

/// An uplink's interface that this process sets.
#[derive(Debug)]
pub(crate) struct UplinkInterface {
    host: Host,
    name: InterfaceName,
    control: SocketPath,
    way: Way,
    /// What was found before anything was changed.
    found: Option<(Found, Kept)>,
    /// What was asked for last (ns).
    asked_ns: u64,
    layer: UplinkLayer,
}

impl UplinkInterface {
    /// Of a weir with this control socket.
    pub(crate) fn new(kind: UplinkKind, name: InterfaceName, control: &SocketPath) -> Self {
        Self::on(Host::this(), kind, name, control)
    }

    fn on(host: Host, kind: UplinkKind, name: InterfaceName, control: &SocketPath) -> Self {
        let (layer, card) = match kind {
            // The host's frames wait in the TAP's queue until a worker reads them; no driver's interrupts have a
            // timer.
            UplinkKind::Tap => (UplinkLayer::WorkerOnly, Err(String::new())),
            UplinkKind::AfPacket | UplinkKind::AfXdp => {
                let card = host.interface(&name).card_usecs();
                (UplinkLayer::AsFound, card.inspect_err(|why| say_by_timer(&name, why)))
            }
        };
        let way = match card {
            Ok(found_usecs) => Way::Card { found_usecs },
            Err(why) => Way::Timer { why },
        };
        Self { host, name, control: control.clone(), way, found: None, asked_ns: 0, layer }
    }

    fn try_to_set(&mut self, uplink_ns: u64) -> Result<UplinkLayer, UplinkError> {
        let (usecs, found_usecs) = match &self.way {
            _ if uplink_ns == 0 => return self.restore().map(|()| UplinkLayer::AsFound),
            Way::Timer { why } => {
                let why = why.clone();
                self.gather_by_timer(uplink_ns)?;
                return Ok(UplinkLayer::Gathers { uplink_ns, by: Gatherer::NapiTimer { why } });
            }
            Way::Card { found_usecs } => {
                (u32::try_from(uplink_ns / NS_PER_US).unwrap_or(u32::MAX), *found_usecs)
            }
        };
        if usecs < RX_USECS_MIN {
            return self.restore().map(|()| UplinkLayer::AsFound);
        }
        match self.gather_by_card(found_usecs, usecs) {
            Ok(layer) => Ok(layer),
            // Nothing could be kept, which a NAPI timer does not change.
            Err(error @ (UplinkError::Keep(_) | UplinkError::Setting { .. })) => Err(error),
            Err(error) => {
                self.restore_or_warn();
                self.give_up_card(format!("rx-usecs: {error}"));
                Ok(UplinkLayer::AsFound)
            }
        }
    }

    /// The NAPI timer follows at the next look. It adds to the card's own coalescing, so shares are decided anew.
    fn give_up_card(&mut self, why: String) {
        say_by_timer(&self.name, &why);
        self.way = Way::Timer { why };
    }

    fn gather_by_card(&mut self, found_usecs: u32, usecs: u32) -> Result<UplinkLayer, UplinkError> {
        if self.found.is_none() {
            match self.host.interface(&self.name).card_usecs() {
                Ok(now) if now == found_usecs => {}
                // Somebody has changed it, and the shares were decided from what it was before.
                Ok(found_usecs) => {
                    self.way = Way::Card { found_usecs };
                    return Ok(UplinkLayer::AsFound);
                }
                Err(why) => {
                    self.give_up_card(why);
                    return Ok(UplinkLayer::AsFound);
                }
            }
            self.keep(Settings::RxUsecs(found_usecs))?;
        }
        let rx_usecs = self.host.interface(&self.name).gather_by_card(usecs)?;
        let uplink_ns = u64::from(rx_usecs) * NS_PER_US;
        Ok(UplinkLayer::Gathers { uplink_ns, by: Gatherer::RxUsecs { found_usecs } })
    }

    fn gather_by_timer(&mut self, uplink_ns: u64) -> Result<(), UplinkError> {
        if self.found.is_none() {
            let timer = self.host.interface(&self.name).napi_timer()?;
            self.keep(Settings::NapiTimer(timer))?;
        }
        self.host.interface(&self.name).gather_by_timer(uplink_ns)
    }

    /// Before anything is changed.
    fn keep(&mut self, settings: Settings) -> Result<(), UplinkError> {
        let found = self.host.interface(&self.name).found(settings)?;
        let kept = Kept::write(&self.control, &found)?;
        self.found = Some((found, kept));
        Ok(())
    }

    /// If it fails, the file stays: the next weir tries again.
    fn restore(&mut self) -> Result<(), UplinkError> {
        if let Some((found, kept)) = self.found.take() {
            self.host.interface(&self.name).restore(&found)?;
            kept.remove();
        }
        Ok(())
    }

    fn restore_or_warn(&mut self) {
        if let Err(error) = self.restore() {
            let interface = &self.name;
            tracing::warn!(%interface, %error, "cannot restore the uplink's settings");
        }
    }
}

impl Gathering for UplinkInterface {
    fn layer(&self) -> &UplinkLayer {
        &self.layer
    }

    fn found_ns(&self) -> u64 {
        match self.way {
            Way::Card { found_usecs } => u64::from(found_usecs) * NS_PER_US,
            Way::Timer { .. } => 0,
        }
    }

    fn set(&mut self, uplink_ns: u64) {
        if !self.is_settable() || self.asked_ns == uplink_ns {
            return;
        }
        match self.try_to_set(uplink_ns) {
            Ok(layer) => {
                // What is as it was found although something else was asked for is asked for again.
                self.asked_ns = if layer == UplinkLayer::AsFound { 0 } else { uplink_ns };
                self.layer = layer;
            }
            Err(error) => {
                self.restore_or_warn();
                let reason = error.to_string();
                tracing::warn!(reason, "cannot set interrupt coalescing of the uplink");
                self.layer = UplinkLayer::Refused { reason };
            }
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
