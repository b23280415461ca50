//! The first layer: the time for which an uplink's interface gathers frames before weir gets them.
//!
//! A network card gathers by its `rx-usecs`; without that, the interface's NAPI timer does. The original settings are
//! restored when weir ends, or by the next weir after a SIGKILL: see [`found`]. So are those of the card's interrupts,
//! which come to the workers' processors: see [`interrupts`].

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;
use weir_agent::napi::Napi;
use weir_config::{InterfaceName, SocketPath, UplinkKind};

use self::ethtool::{Coalescing, Ethtool};
use self::found::{Found, FoundError, Kept, NapiTimer, Settings};
use self::interrupts::{FoundIrqs, Irqs};
use crate::explain::{Gatherer, InterruptPlace, InterruptPlaces, UplinkLayer};

mod ethtool;
mod found;
mod interrupts;

/// The directory with the kernel's settings of interfaces.
const SYS_CLASS_NET: &str = "/sys/class/net";
/// The interval of NAPI polls (ns), and the number of empty polls in a row before interrupts come back on (Linux
/// 5.8; see `napi_defer_hard_irqs` in the kernel's Documentation/networking/napi.rst).
const FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// See [`FLUSH_TIMEOUT`].
const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// The interface's index.
const IFINDEX: &str = "ifindex";
/// An empty poll costs about as much as the interrupt that it saves, so there are few of them.
const EMPTY_POLLS: u64 = 2;
/// The smallest `rx-usecs` that weir sets: drivers give smaller values their own meaning (Intel's
/// drivers do so with 1 and 3).
const RX_USECS_MIN: u32 = 10;
/// Attempts with a driver that rounds up: the first reduces the value by a 64th, and each further one by twice the
/// last reduction. An e1000e's steps are a 50th of an interval of 5 ms.
const RX_USECS_TRIES: u32 = 5;
const RX_USECS_LESS: u32 = 64;
const NS_PER_US: u64 = 1_000;

/// The reason why an interface does not gather as requested.
#[derive(Debug, Error)]
enum UplinkError {
    /// A setting can't be read or written.
    #[error("{}: {source}", path.display())]
    Setting {
        /// The setting's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The original settings cannot be kept, so nothing is changed.
    #[error(transparent)]
    Keep(#[from] FoundError),
    /// The card cannot be queried, or refuses.
    #[error(transparent)]
    Card(#[from] io::Error),
    /// The card rounds `rx-usecs` up to more than the budget leaves.
    #[error("{asked} us became {became} us")]
    Longer {
        /// The last requested value.
        asked: u32,
        /// The card's value after the request.
        became: u32,
    },
}

/// Network cards; simulated ones in tests.
trait Nic: fmt::Debug + Send {
    /// The present coalescing; `None` if there is no `rx-usecs`.
    fn coalescing(&self, interface: &InterfaceName) -> io::Result<Option<Coalescing>>;

    /// Sets `rx-usecs`, which a driver may round.
    fn set_rx_usecs(&self, interface: &InterfaceName, usecs: u32) -> io::Result<()>;

    /// The NAPI instances with other settings than these of the interface.
    fn napis_set_alone(&self, ifindex: u32, polls: u64, timeout_ns: u64) -> Vec<Napi>;

    /// Restores the settings of NAPI instances.
    fn restore_napis(&self, all: &[Napi]) -> io::Result<()>;
}

/// The settings of one interface: those under `/sys`, and those of its card.
#[derive(Debug)]
struct Interface<'n> {
    name: InterfaceName,
    dir: PathBuf,
    proc: &'n Path,
    nic: &'n dyn Nic,
}

impl Interface<'_> {
    fn irqs(&self) -> Irqs<'_> {
        Irqs { proc: self.proc, device: self.dir.join("device") }
    }

    /// The card's `rx-usecs` if weir may set it, otherwise the reason why not.
    fn card_usecs(&self) -> Result<u32, String> {
        match self.nic.coalescing(&self.name) {
            // Some drivers open all queues again when adaptive-rx is switched off or on.
            Ok(Some(Coalescing { adaptive: true, .. })) => Err("adaptive-rx is on".into()),
            // With this setting the NAPI timer's polls keep the card's interrupts masked.
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
        let (gro_flush_timeout, napi_defer_hard_irqs) =
            (self.read(FLUSH_TIMEOUT)?, self.read(DEFER_HARD_IRQS)?);
        let ifindex = self.read(IFINDEX)?;
        let napis = self.nic.napis_set_alone(ifindex, napi_defer_hard_irqs, gro_flush_timeout);
        Ok(NapiTimer { gro_flush_timeout, napi_defer_hard_irqs, napis })
    }

    /// Sets the card to gather for `usecs`, or less if its driver rounds; returns the value that the card reports.
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

    /// The interval is set first, because polls without an interval would follow each other at once.
    fn gather_by_timer(&self, uplink_ns: u64) -> Result<(), UplinkError> {
        self.write(FLUSH_TIMEOUT, uplink_ns)?;
        self.write(DEFER_HARD_IRQS, EMPTY_POLLS)
    }

    /// Restores the settings; returns true if the interface still exists. The settings of a removed interface are
    /// removed with it, and another interface may have its name.
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
        match &found.settings {
            Settings::NapiTimer(found) => {
                let polls = self.write(DEFER_HARD_IRQS, found.napi_defer_hard_irqs);
                // This setting is restored even if the other setting cannot be.
                self.write(FLUSH_TIMEOUT, found.gro_flush_timeout)?;
                polls?;
                // The two files have set every NAPI instance.
                self.nic.restore_napis(&found.napis)?;
            }
            // A driver that refused the setting has nothing to restore.
            Settings::RxUsecs(found) if self.rx_usecs()? == *found => {}
            Settings::RxUsecs(found) => self.nic.set_rx_usecs(&self.name, *found)?,
            Settings::Interrupts(found) => self.irqs().restore(found)?,
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

/// The place of interfaces' settings: `/sys`, `/proc` and the network cards.
#[derive(Debug)]
struct Host {
    sys: PathBuf,
    proc: PathBuf,
    nic: Box<dyn Nic>,
}

impl Host {
    fn this() -> Self {
        Self { sys: SYS_CLASS_NET.into(), proc: "/proc".into(), nic: Box::new(Ethtool) }
    }

    fn interface(&self, name: &InterfaceName) -> Interface<'_> {
        let (dir, proc) = (self.sys.join(name.as_str()), &*self.proc);
        Interface { name: name.clone(), dir, proc, nic: &*self.nic }
    }
}

/// Restores interfaces that a killed weir with this control socket left changed. Failures are logged, and retried at
/// the next start.
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

/// The means by which an interface gathers.
#[derive(Debug)]
enum Way {
    /// The network card.
    Card {
        /// The card's original `rx-usecs`.
        found_usecs: u32,
    },
    /// The NAPI timer.
    Timer {
        /// The reason why the card is not used.
        why: String,
    },
}

/// The message is logged once for each uplink, because the choice of the timer is final.
fn say_by_timer(interface: &InterfaceName, why: &str) {
    tracing::info!(%interface, why, "the uplink coalesces interrupts by its NAPI timer, not by its card");
}

/// An uplink's interface that can gather frames. Dropping it restores the original settings.
pub(crate) trait Gathering: fmt::Debug + Send {
    /// The present state.
    fn layer(&self) -> &UplinkLayer;

    /// The original coalescing (ns), if known: an unset NAPI timer has none.
    fn found_ns(&self) -> u64;

    /// Gathers for `uplink_ns` from now on, or for a little less; 0 means the original setting.
    fn set(&mut self, uplink_ns: u64);

    /// Sends the interrupt of each queue to a processor from now on. The interrupts of other queues
    /// get their original setting.
    fn follow(&mut self, cpus: &BTreeMap<u16, u16>);

    /// The processors of interrupts.
    fn interrupts(&self) -> &InterruptPlaces;

    /// True if the gathering time can be set, as far as is known.
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
    /// The original settings, read before the first change.
    found: Option<(Found, Kept)>,
    /// The last requested time (ns).
    asked_ns: u64,
    layer: UplinkLayer,
    interrupts: Interrupts,
}

/// The interrupts of an interface.
#[derive(Debug, Default)]
struct Interrupts {
    /// The original settings, read before the first change.
    found: Option<(Found, Kept)>,
    /// The last request: the processor of each queue's interrupt.
    asked: BTreeMap<u16, u16>,
    places: InterruptPlaces,
}

impl UplinkInterface {
    /// The interface of a weir with this control socket.
    pub(crate) fn new(kind: UplinkKind, name: InterfaceName, control: &SocketPath) -> Self {
        Self::on(Host::this(), kind, name, control)
    }

    fn on(host: Host, kind: UplinkKind, name: InterfaceName, control: &SocketPath) -> Self {
        let (layer, card) = if kind.has_card() {
            let card = host.interface(&name).card_usecs();
            (UplinkLayer::AsFound, card.inspect_err(|why| say_by_timer(&name, why)))
        } else {
            // Frames from the host wait in the device until a worker reads them. There is no driver whose interrupts
            // have a timer. The uplinks of a bond gather, each by itself.
            (UplinkLayer::WorkerOnly, Err(String::new()))
        };
        let way = match card {
            Ok(found_usecs) => Way::Card { found_usecs },
            Err(why) => Way::Timer { why },
        };
        let (control, interrupts) = (control.clone(), Interrupts::default());
        Self { host, name, control, way, found: None, asked_ns: 0, layer, interrupts }
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
            // The original settings could not be kept, and the NAPI timer would fail in the same way.
            Err(error @ (UplinkError::Keep(_) | UplinkError::Setting { .. })) => Err(error),
            Err(error) => {
                self.restore_or_warn();
                self.give_up_card(format!("rx-usecs: {error}"));
                Ok(UplinkLayer::AsFound)
            }
        }
    }

    /// Gives up the card; the NAPI timer is set at the next look. The timer adds to the card's own coalescing, so the
    /// shares are decided again.
    fn give_up_card(&mut self, why: String) {
        say_by_timer(&self.name, &why);
        self.way = Way::Timer { why };
    }

    fn gather_by_card(&mut self, found_usecs: u32, usecs: u32) -> Result<UplinkLayer, UplinkError> {
        if self.found.is_none() {
            match self.host.interface(&self.name).card_usecs() {
                Ok(now) if now == found_usecs => {}
                // Another program has changed `rx-usecs`, and the shares were decided from the old value.
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

    /// Keeps the original settings, before the first change.
    fn keep(&mut self, settings: Settings) -> Result<(), UplinkError> {
        let found = self.host.interface(&self.name).found(settings)?;
        let kept = Kept::write(&self.control, &found)?;
        self.found = Some((found, kept));
        Ok(())
    }

    fn try_to_follow(&mut self, cpus: &BTreeMap<u16, u16>) -> Result<InterruptPlaces, UplinkError> {
        let interface = self.host.interface(&self.name);
        let by_queue = interface.irqs().by_queue();
        let wanted: BTreeMap<_, _> = cpus
            .iter()
            .filter_map(|(queue, cpu)| Some((*queue, (*cpu, by_queue.get(queue)?.clone()))))
            .collect();
        let known = match &self.interrupts.found {
            Some((Found { settings: Settings::Interrupts(known), .. }, _)) => known.clone(),
            _ => FoundIrqs::default(),
        };
        let is_known = |(_, (irq, it)): &(u16, (u32, interrupts::FoundIrq))| {
            known.get(irq).is_some_and(|known| known.name == it.name)
        };
        if !wanted.values().all(is_known) {
            self.restore_interrupts()?;
            // The settings are looked at anew: weir's own were among them.
            let interface = self.host.interface(&self.name);
            let by_queue = interface.irqs().by_queue();
            let found: FoundIrqs =
                wanted.keys().filter_map(|queue| by_queue.get(queue).cloned()).collect();
            if let Some(reason) = interface.irqs().rulers(&found) {
                return Ok(InterruptPlaces::LeftAlone { reason });
            }
            let found = interface.found(Settings::Interrupts(found))?;
            let kept = Kept::write(&self.control, &found)?;
            self.interrupts.found = Some((found, kept));
        }
        let interface = self.host.interface(&self.name);
        let irqs = interface.irqs();
        for (cpu, (irq, _)) in wanted.values() {
            irqs.set(*irq, *cpu)?;
        }
        let is_other = |(irq, _): &(&u32, _)| wanted.values().all(|(_, (set, _))| set != *irq);
        irqs.restore(known.iter().filter(is_other))?;
        Ok(match wanted.is_empty() {
            true => {
                InterruptPlaces::LeftAlone { reason: "no queue has an interrupt of its own".into() }
            }
            false => {
                let place = |(queue, (cpu, _)): (&u16, &(u16, _))| InterruptPlace {
                    queue: *queue,
                    cpu: *cpu,
                };
                InterruptPlaces::Follow { queues: wanted.iter().map(place).collect() }
            }
        })
    }

    fn restore_interrupts(&mut self) -> Result<(), UplinkError> {
        if let Some((found, kept)) = self.interrupts.found.take() {
            self.host.interface(&self.name).restore(&found)?;
            kept.remove();
        }
        Ok(())
    }

    fn restore_interrupts_or_warn(&mut self) {
        if let Err(error) = self.restore_interrupts() {
            let interface = &self.name;
            tracing::warn!(%interface, %error, "cannot restore the uplink's interrupts");
        }
    }

    /// Restores the original settings. If that fails, the file stays and the next weir tries again.
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
                // If the interface is at its original setting although another one was requested, the next call
                // requests it again.
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

    fn follow(&mut self, cpus: &BTreeMap<u16, u16>) {
        if self.interrupts.asked == *cpus {
            return;
        }
        self.interrupts.asked.clone_from(cpus);
        if cpus.is_empty() {
            self.restore_interrupts_or_warn();
            self.interrupts.places = InterruptPlaces::AsFound;
            return;
        }
        let interface = self.name.clone();
        let places = self.try_to_follow(cpus).unwrap_or_else(|error| {
            self.restore_interrupts_or_warn();
            InterruptPlaces::LeftAlone { reason: error.to_string() }
        });
        tracing::info!(%interface, ?places, "the uplink's interrupts");
        self.interrupts.places = places;
    }

    fn interrupts(&self) -> &InterruptPlaces {
        &self.interrupts.places
    }
}

impl Drop for UplinkInterface {
    fn drop(&mut self) {
        self.restore_interrupts_or_warn();
        self.restore_or_warn();
    }
}

#[cfg(test)]
mod tests;
