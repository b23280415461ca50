//! All participants of a soak.
//!
//! ```text
//!  guests of this process --- weir A - TAP - bridge ---- bridge - TAP - weir B
//!  QEMU, user-mode Linux ------+  a QEMU moves from here to there and back  +
//! ```

use std::{path::PathBuf, sync::Arc, time::Duration};

use weir_bed::{
    address,
    error::{Error, Result, check},
    lab::Lab,
    lines,
    process::{Placement, Process, wait_until},
    qemu::{Guest, QEMU, moves::Mover},
    uml::{self, UserModeLinux, Wire},
    uplink::Uplink,
    weir::{self, Setup, Vif, Weir},
    weir_stats::{Stats, Way as Side},
};
use weir_vif::Features;

use super::Lives;
use crate::{
    account::{Account, Observed},
    real,
    traffic::{Build, Flow, Pace, Traffic, Way, mac},
};

/// Guests of this process: two with split rings and four queues, two with packed rings, and a slow one with in-order
/// rings that often has no buffers.
const PEERS: usize = 5;
const SLOW: usize = 4;
/// The guest that always sends to the victim, even if the victim is dead.
const LOSSY: usize = 5;
/// A guest in a separate program, which is killed at times.
pub const VICTIM: usize = 6;
/// A guest that stays, one that moves, and a user-mode Linux.
const STAYS: u8 = 7;
const MOVES: u8 = 8;
const UML: u8 = 9;
/// Number of all guests.
pub const GUESTS: usize = 10;
/// VLANs without frames of Linux guests, whose broadcasts are not counted.
const PEERS_VLAN: u16 = 98;
const VICTIMS_VLAN: u16 = 99;

const TICK: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 5000;

/// Linux guests.
pub struct Real {
    pub stays: Guest,
    pub moves: Mover,
    /// Index of its weir.
    pub at: usize,
    pub uml: Option<Guest>,
    /// User-mode Linux, if it runs on this machine.
    uml_programs: Option<UserModeLinux>,
    lines: [u64; 2],
    weirs_dirs: [PathBuf; 2],
}

/// The results so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Frames lost without a reason, echo requests without an answer, and wrong lines.
    pub unaccounted: u64,
    /// Chains that were not returned, or were returned twice.
    pub wrong_chains: u64,
    /// Echo requests of Linux guests.
    pub echoes: u64,
}

/// All participants. Guests are dropped before the switches.
pub struct World<'a> {
    pub traffic: Traffic,
    pub victim: Option<Process>,
    pub real: Option<Real>,
    pub weirs: [Weir; 2],
    pub setup: Setup,
    pub lab: &'a Lab,
    pub lives: [Lives; 2],
    pub keepers: [Lives; 2],
    account: Account,
    accounted: u64,
    /// The victim's sender's count at the start of the present weir or of its counters.
    lossy_base: u64,
    pub found: Found,
}

/// Returns the setup of all interfaces.
fn setup() -> Setup {
    let vif = |index: usize| Vif {
        queues: [0, 1].contains(&index).then_some(4),
        vlan: match index {
            0..PEERS => Some(PEERS_VLAN),
            LOSSY | VICTIM => Some(VICTIMS_VLAN),
            _ => None,
        },
        ..Vif::default()
    };
    let vifs = (0..GUESTS).map(vif).collect();
    Setup {
        vifs,
        uplink: Some(Uplink::Tap),
        // The uplink carries no frames of the other VLANs.
        uplink_vlan: Some(1),
        keeper: true,
        workers: Some(2),
        ..Setup::default()
    }
}

/// Starts two weirs whose TAPs are on bridges, with a link between the bridges.
fn hosts(lab: &Lab, setup: &Setup) -> Result<[Weir; 2]> {
    let weirs = [Weir::start(lab, setup)?, Weir::start(lab, setup)?];
    weir_system_tests::guests::moves::join(&weirs)?;
    Ok(weirs)
}

fn traffic(weir: &Weir) -> Result<Traffic> {
    let build = |index: usize| {
        let (queues, queue_size, format, dawdle) = match index {
            0 | 1 => (4, 256, Features::NONE, 0),
            2 | 3 => (1, 256, Features::RING_PACKED, 0),
            SLOW => (1, 16, Features::IN_ORDER, 400),
            _ => (1, 256, Features::NONE, 0),
        };
        let dawdle = Duration::from_micros(dawdle);
        let socket = weir.socket(index as u16)?;
        Ok(Build { socket, mac: mac(index), queues, queue_size, format, dawdle, tick: TICK })
    };
    let builds = (0..=LOSSY).map(build).collect::<Result<Vec<_>>>()?;
    let way = |from, to| {
        let window = if to == SLOW { 12 } else { 32 };
        Way { from, to, pace: Pace { burst: 8, window: Some(window) } }
    };
    let pairs = [(0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (0, 1), (1, 0), (2, 3), (3, 2)];
    let mixed = [(0, 2), (3, 1), (3, SLOW), (0, SLOW)];
    let mut ways: Vec<_> = pairs.into_iter().chain(mixed).map(|(from, to)| way(from, to)).collect();
    ways.push(Way { from: LOSSY, to: VICTIM, pace: Pace { burst: 2, window: None } });
    Traffic::begin(&builds, &ways)
}

impl Real {
    fn boot(lab: &Lab, weirs: &[Weir; 2]) -> Result<Self> {
        let [here, _] = weirs;
        let uml_programs = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)?;
        let mut stays = Guest::boot(&lab.image, &real::spec(here, STAYS, 1, "")?, here.dir())?;
        let spec = real::spec(here, MOVES, 1, ",packed=on")?;
        let mut moves = Mover::boot(QEMU, &lab.image, &spec, here.dir())?;
        let ip = address::ip;
        lines::begin(&mut stays, &mut moves.guest, &ip(MOVES), PORT)?;
        lines::begin(&mut moves.guest, &mut stays, &ip(STAYS), PORT)?;
        let weirs_dirs = [0, 1].map(|index: usize| weirs[index].dir().to_owned());
        let mut this =
            Self { stays, moves, at: 0, uml: None, uml_programs, lines: [0; 2], weirs_dirs };
        this.boot_uml(here)?;
        Ok(this)
    }

    /// Kills the user-mode Linux, if there is one, and boots another one, if it runs on this machine.
    pub fn boot_uml(&mut self, here: &Weir) -> Result<()> {
        let Some(programs) = &self.uml_programs else { return Ok(()) };
        if let Some(old) = self.uml.take() {
            old.kill();
        }
        let console = here.dir().join("uml.console");
        let mut guest = programs.boot(&Wire::VhostUser(&here.socket(UML)?), &console)?;
        uml::set_addresses(&mut guest, UML)?;
        self.uml = Some(guest);
        Ok(())
    }

    /// Moves the moving guest to the other weir.
    pub fn move_over(&mut self, lab: &Lab, weirs: &[Weir; 2]) -> Result<u64> {
        self.at = 1 - self.at;
        let spec = real::spec(&weirs[self.at], MOVES, 1, ",packed=on")?;
        let moved = self.moves.move_to(QEMU, &lab.image, &spec, &self.weirs_dirs[self.at])?;
        Ok(moved.downtime_ms)
    }

    /// Collects the guests' reports since the last call. Every guest pings another one.
    fn judge(&mut self, found: &mut Found) -> Result<()> {
        const COUNT: u32 = 5;
        let mut ask = |guest: &mut Guest, index: u8| -> Result<()> {
            let printed = guest.run(&real::echo(&address::ip(index), COUNT, 0.05), PATIENCE)?;
            let [sent, answered, _] = real::echoed(&printed)?;
            found.echoes += sent;
            found.unaccounted += sent - answered;
            Ok(())
        };
        ask(&mut self.stays, MOVES)?;
        ask(&mut self.moves.guest, STAYS)?;
        if let Some(uml) = &mut self.uml {
            ask(uml, STAYS)?;
        }
        let guests = [&mut self.stays, &mut self.moves.guest];
        for (guest, before) in guests.into_iter().zip(&mut self.lines) {
            let mut now = [0; 2];
            wait_until("numbered lines to come", PATIENCE, || {
                now = lines::seen(guest, PORT)?;
                Ok(now[0] > *before)
            })?;
            check(now[1] == 0, || format!("{} of {} lines are wrong", now[1], now[0]))?;
            *before = now[0];
            found.wrong_chains += real::wrong_chains(guest)?;
        }
        Ok(())
    }
}

impl<'a> World<'a> {
    /// Starts all programs, and waits for traffic. Linux guests take part if `real`.
    pub fn begin(lab: &'a Lab, real: bool) -> Result<Self> {
        let setup = setup();
        let weirs = hosts(lab, &setup)?;
        let traffic = traffic(&weirs[0])?;
        let real = real.then(|| Real::boot(lab, &weirs)).transpose()?;
        let mut this = Self {
            traffic,
            victim: None,
            real,
            weirs,
            setup,
            lab,
            lives: Default::default(),
            keepers: Default::default(),
            account: Account::default(),
            accounted: 0,
            lossy_base: 0,
            found: Found::default(),
        };
        this.begin_victim()?;
        this.resume()?;
        Ok(this)
    }

    /// Iterates over the flows whose frames must all arrive.
    pub fn peers(&self) -> impl Iterator<Item = &Arc<Flow>> + Clone {
        self.traffic.flows().iter().filter(|flow| flow.from != mac(LOSSY))
    }

    fn lossy(&self) -> impl Iterator<Item = &Arc<Flow>> + Clone {
        self.traffic.flows().iter().filter(|flow| flow.from == mac(LOSSY))
    }

    /// Starts a new victim. A previous victim is killed by SIGKILL.
    pub fn begin_victim(&mut self) -> Result<()> {
        self.victim = None;
        let own = std::env::current_exe()
            .map_err(|source| Error::Io { what: "find this program".into(), source })?;
        let socket = self.weirs[0].socket(VICTIM as u16)?;
        let (own, socket) = (own.to_string_lossy(), socket.to_string_lossy());
        let argv = [&*own, "guest", &*socket, &VICTIM.to_string(), &LOSSY.to_string()];
        let log = self.weirs[0].dir().join("victim.log");
        self.victim = Some(Process::start_logged(&argv, &Placement::default(), &log)?);
        Ok(())
    }

    /// Waits until the victim is served.
    pub fn await_victim(&mut self) -> Result<()> {
        let victim = weir::name(VICTIM as u16);
        self.weirs[0].await_stats("the victim to be served", PATIENCE, |stats| {
            stats.state(&victim).is_ok_and(|state| state == "running")
        })
    }

    /// Kills weir A by SIGKILL. Its counters are read first, and guests that may lose frames get none meanwhile.
    pub fn kill_first(&mut self) -> Result<()> {
        self.settle_lossy()?;
        self.weirs[0].crash();
        self.account.ended();
        self.lives[0].ended();
        // The next weir counts from zero.
        self.lossy_base = self.lossy().map(|flow| flow.sent()).sum();
        self.weirs[0].launch_again()
    }

    /// Upgrades weir A: another process takes over. Counters are settled as before a SIGKILL.
    pub fn upgrade_first(&mut self) -> Result<()> {
        self.settle_lossy()?;
        self.weirs[0].upgrade()?;
        self.account.ended();
        self.lives[0].ended();
        self.lossy_base = self.lossy().map(|flow| flow.sent()).sum();
        Ok(())
    }

    /// Kills weir B by SIGKILL.
    pub fn kill_second(&mut self) -> Result<()> {
        self.weirs[1].crash();
        self.lives[1].ended();
        self.weirs[1].launch_again()?;
        self.weirs[1].await_stats("the other weir to be back", PATIENCE, |_| true)
    }

    /// Waits for traffic after [`World::kill_first`].
    pub fn resume(&mut self) -> Result<()> {
        let flowing = self.traffic.await_flow(self.peers());
        self.traffic.go_on();
        flowing.map_err(|error| {
            let drops = self.weirs[0].stats().and_then(|stats| stats.drops());
            Error::Check(format!("{error}\ndropped: {drops:?}\n{}", self.weirs[0].log()))
        })
    }

    /// Compares the victim's sender's count with weir's counters at both ends.
    fn settle_lossy(&mut self) -> Result<()> {
        let settled = self.traffic.settle_uncounted(self.lossy());
        self.found.wrong_chains += settled.stuck;
        let stats = self.weirs[0].stats()?;
        let sent = self.lossy().map(|flow| flow.sent()).sum::<u64>() - self.lossy_base;
        let accounted = delivered_or_dropped(&stats)?;
        if sent != accounted {
            println!("of {sent} frames to the victim, weir accounts for {accounted}");
        }
        self.found.unaccounted += sent.abs_diff(accounted);
        self.account.note(&stats)
    }

    /// Stops sending, and checks that each frame has arrived or is counted with a reason.
    pub fn settle(&mut self) -> Result<()> {
        let settled = self.traffic.settle(self.peers());
        self.settle_lossy()?;
        let among = |port: &str| (0..PEERS).any(|index| port == weir::name(index as u16));
        let accounted = self.account.total(among);
        let missing = settled.missing.saturating_sub(accounted - self.accounted);
        if settled.missing > 0 || settled.stuck > 0 {
            let reasons = self.account.reasons();
            println!(
                "{} frames and {} chains missing; dropped: {reasons}",
                settled.missing, settled.stuck
            );
        }
        self.accounted = accounted;
        self.found.unaccounted += missing;
        self.found.wrong_chains += settled.stuck;
        self.traffic.check()?;
        self.traffic.go_on();
        self.real.as_mut().map_or(Ok(()), |real| real.judge(&mut self.found))
    }

    /// Measures the size of every program while all guests are on their first weir: a session takes descriptors and a
    /// thread.
    pub fn look(&mut self) -> Result<()> {
        if self.real.as_ref().is_some_and(|real| real.at != 0) {
            return Ok(());
        }
        self.await_victim()?;
        for index in 0..2 {
            self.lives[index].note(Observed::of(self.weirs[index].process().pid())?);
            if let Some(keeper) = self.weirs[index].keeper() {
                self.keepers[index].note(Observed::of(keeper.pid())?);
            }
        }
        Ok(())
    }

    /// Returns the returned chains that guests of this process had not made available, the frames sent, and the
    /// repeated frames.
    pub fn totals(&self) -> (u64, u64, u64) {
        let (sent, repeated) = self.traffic.sent_and_repeated();
        (self.traffic.errors(), sent, repeated)
    }

    /// Returns the drops by reason.
    pub fn reasons(&self) -> String {
        self.account.reasons()
    }
}

/// Returns the frames to the victim that were delivered or dropped.
fn delivered_or_dropped(stats: &Stats) -> Result<u64> {
    let [lossy, victim] = [LOSSY, VICTIM].map(|index| weir::name(index as u16));
    let delivered: u64 = stats.frames_by_queue(&victim, Side::Rx)?.iter().sum();
    let drops = stats.drops()?;
    // Drops with a receiver are counted at the receiver, except for a frame that waited in its sender's memory.
    let at_receiver = |reason: &str| reason.starts_with("rx_") && reason != "rx_waited_too_long";
    let dropped: u64 = drops
        .iter()
        .filter(|((port, reason), _)| *port == if at_receiver(reason) { &*victim } else { &*lossy })
        .map(|(_, count)| count)
        .sum();
    Ok(delivered + dropped)
}
