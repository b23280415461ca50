//! The manager: decisions from counters, at intervals.
//!
//! The manager is a thread outside the datapath. Under traffic it does each of these tasks at its own interval, if
//! something depends on the task: it moves queues between workers; it decides by Eq. 4 how long uplinks coalesce and
//! calls are held (Dong 2011 §4.2, fig. 5), and sets both, if a policy takes part or a guest has an agent; it moves
//! entries of the indirection tables of ports with several receive queues; it places workers on CPUs, if configured;
//! it looks for loops, if any are possible. Without traffic it sleeps without a timer, until a worker wakes up.
//!
//! | file | content |
//! |---|---|
//! | `core.rs` | the decisions; pure |
//! | `agents.rs` | the agents in guests: connections and requested intervals |
//! | `guest_cpu.rs` | the CPU time of a virtual machine |
//! | `placement/` | the placement of workers and vCPUs |
//! | `uplink.rs` | the interval of an uplink's interface, by its card or its NAPI timer, and the original setting |
//! | `rebalance.rs` | the indirection table of a port with several receive queues |
//! | `thread.rs` | the thread: the times of looks, and the application of decisions |

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use weir_agent::Below;
use weir_config::{PlacementConfig, PortName, UplinkConfig};
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, supervise};
use weir_fabric::PortId;
use weir_policy::moderation::Kind;
use weir_policy::schedule::Share;
use weir_port_tap::UplinkPort;
use weir_port_vxlan::VxlanPort;
use weir_wire::Mac;

use crate::explain::{
    AgentExplanation, PlacementExplanation, SplitExplanation, SteeringExplanation,
    UplinkExplanation,
};
use crate::loops::Loops;
use crate::switch::Kept;

mod agents;
mod core;
mod guest_cpu;
mod placement;
mod rebalance;
#[cfg(test)]
mod tests;
mod thread;
mod uplink;

pub(crate) use agents::AgentSocket;
pub(crate) use guest_cpu::is_virtual_processor;
pub(crate) use placement::{Host, PlacementCounts, set_affinity};
use thread::{ManagedUplink, ManagedVif, Run};
pub(crate) use uplink::{Gathering, UplinkInterface, restore_left_over};

/// An interface to be added to the manager.
pub(crate) struct NewVif {
    pub(crate) name: PortName,
    pub(crate) port: Arc<dyn GuestPort>,
    pub(crate) agent: Option<AgentSocket>,
    pub(crate) settings: VifSettings,
}

/// The settings of an interface that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VifSettings {
    pub(crate) kind: Kind,
    /// The part of the interface's latency budget that is left for holding (ns).
    pub(crate) hold_ns_max: u64,
    /// The whole latency budget (ns).
    pub(crate) budget_ns: u64,
    /// The interface's share of each worker.
    pub(crate) share: Share,
    /// The whole latency budget (ns), if the interface is in a network of the overlay.
    pub(crate) overlay_budget_ns: Option<u64>,
    /// The guest's address.
    pub(crate) mac: Mac,
    /// True if entries of the interface's indirection table move by load.
    pub(crate) rss_rebalance: bool,
}

/// The manager's explanation of an interface.
#[derive(Debug, Default)]
pub(crate) struct ManagedExplanation {
    pub(crate) split: Option<SplitExplanation>,
    pub(crate) agent: Option<AgentExplanation>,
    pub(crate) steering: Option<SteeringExplanation>,
}

enum Command {
    AddVifs(Vec<ManagedVif>),
    ChangeVif(PortId, VifSettings),
    RemoveVif(PortId, mpsc::Sender<()>),
    SetOverlay(Arc<VxlanPort>),
    AddUplink(Box<ManagedUplink>),
    ChangeUplink(PortName, bool),
    RemoveUplink(PortName, mpsc::Sender<()>),
    SetBelow(PortName, Box<Below>, Option<Kept>),
    ExplainVif(PortId, mpsc::Sender<ManagedExplanation>),
    ExplainUplink(PortName, mpsc::Sender<UplinkExplanation>),
    Place(PlacementConfig, Host),
    ExplainPlacement(mpsc::Sender<PlacementExplanation>),
    Stop,
    #[cfg(test)]
    Panic,
}

/// The manager's thread. Dropping it ends the thread, and restores every setting that it has changed outside of this
/// process.
pub(crate) struct Manager {
    commands: Mutex<mpsc::Sender<Command>>,
    wake: Arc<OwnedFd>,
    placement: Arc<PlacementCounts>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Starts the thread.
    ///
    /// # Errors
    /// A thread or a descriptor was not available.
    pub(crate) fn start(engine: Arc<Engine>, loops: Arc<Loops>) -> io::Result<Self> {
        let (sender, commands) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut run = Run::new(engine, loops, Arc::clone(&wake), commands);
        let placement = run.placement_counts();
        let name = "weir-manager";
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            // However the thread ends, dropping `run` restores the settings.
            supervise(name, || run.run());
        })?;
        Ok(Self { commands: Mutex::new(sender), wake, placement, thread: Some(thread) })
    }

    /// Ends the thread as dropping does. Later calls do nothing.
    pub(crate) fn end(&mut self) {
        self.send(Command::Stop);
        // A panic of the thread was already printed on standard error.
        let _ = self.thread.take().map(JoinHandle::join);
    }

    /// Adds interfaces. The thread checks all its interfaces once, however many are added.
    pub(crate) fn add_vifs(&self, vifs: impl IntoIterator<Item = NewVif>) {
        self.send(Command::AddVifs(vifs.into_iter().map(ManagedVif::new).collect()));
    }

    /// Changes an interface's settings, and gives its policy the whole budget again.
    pub(crate) fn change_vif(&self, id: PortId, settings: VifSettings) {
        self.send(Command::ChangeVif(id, settings));
    }

    /// Forgets an interface. Returns when nobody listens for its agent any more.
    pub(crate) fn remove_vif(&self, id: PortId) {
        // If there is no answer, the thread has ended and has forgotten all interfaces.
        let _ = self.ask(|done| Command::RemoveVif(id, done));
    }

    /// From now on this overlay exchanges messages with other hosts.
    pub(crate) fn set_overlay(&self, overlay: Arc<VxlanPort>) {
        self.send(Command::SetOverlay(overlay));
    }

    /// Adds an uplink, whose interface can gather frames.
    pub(crate) fn add_uplink(
        &self,
        config: &UplinkConfig,
        id: PortId,
        port: Arc<dyn UplinkPort>,
        interface: Box<dyn Gathering>,
    ) {
        let uplink = ManagedUplink::new(config, id, port, interface);
        self.send(Command::AddUplink(Box::new(uplink)));
    }

    /// From now on the weir below, to which `below` leads, leaves a latency budget to this one.
    pub(crate) fn set_below(&self, name: &PortName, below: Below, kept: Option<Kept>) {
        self.send(Command::SetBelow(name.clone(), Box::new(below), kept));
    }

    /// Sets whether entries of an uplink's indirection table move by load.
    pub(crate) fn change_uplink(&self, name: &PortName, rss_rebalance: bool) {
        self.send(Command::ChangeUplink(name.clone(), rss_rebalance));
    }

    /// Forgets an uplink. Returns when the original settings of its interface are restored.
    pub(crate) fn remove_uplink(&self, name: &PortName) {
        // If there is no answer, the thread has ended and has restored all uplinks.
        let _ = self.ask(|done| Command::RemoveUplink(name.clone(), done));
    }

    /// From now on places workers, and with permission guests' virtual processors, on the CPUs of `host`.
    pub(crate) fn place(&self, config: PlacementConfig, host: Host) {
        self.send(Command::Place(config, host));
    }

    /// The placement of workers and virtual processors, if the thread still runs.
    pub(crate) fn explain_placement(&self) -> Option<PlacementExplanation> {
        self.ask(Command::ExplainPlacement)
    }

    pub(crate) fn placement_counts(&self) -> &PlacementCounts {
        &self.placement
    }

    /// The explanation of an interface.
    pub(crate) fn explain_vif(&self, id: PortId) -> ManagedExplanation {
        self.ask(|answer| Command::ExplainVif(id, answer)).unwrap_or_default()
    }

    /// The explanation of an uplink, if there is one of that name.
    pub(crate) fn explain_uplink(&self, name: &PortName) -> Option<UplinkExplanation> {
        self.ask(|answer| Command::ExplainUplink(name.clone(), answer))
    }

    /// Sends a command and waits for its answer; `None` if the thread has ended.
    fn ask<T>(&self, command: impl FnOnce(mpsc::Sender<T>) -> Command) -> Option<T> {
        let (answer, wait) = mpsc::channel();
        self.send(command(answer));
        wait.recv().ok()
    }

    /// Sends a command. It is lost if the thread has ended, which happens only at the end of the switch.
    fn send(&self, command: Command) {
        let commands = self.commands.lock().unwrap_or_else(|e| e.into_inner());
        let _ = commands.send(command);
        drop(commands);
        // A full counter means that the thread will wake anyway.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
    }
}
