//! `[switch]`: the keys of the whole switch.

use super::api::ApiConfig;
use super::keys::{NEEDS_A_RESTART, keys};
use super::values::{
    Execution, FdbEntries, LatencyBudget, PlacementMode, Realization, Schedule, SocketPath,
    UserName, Workers,
};

keys! {
    /// `[switch]`: what holds for the whole switch.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SwitchConfig {
        /// Which threads do the work.
        execution: Execution = Execution::default(), [fixed(NEEDS_A_RESTART)];
        /// How they wait for it.
        realization: Realization = Realization::default(), [fixed(NEEDS_A_RESTART)];
        /// How many worker threads there are.
        workers: Workers = Workers::Auto, [fixed(NEEDS_A_RESTART)];
        /// The budget of every interface that has none of its own.
        latency_budget: LatencyBudget = LatencyBudget::DEFAULT, [];
        /// By which rule workers give turns to those who send.
        schedule: Schedule = Schedule::default(), [];
        /// Addresses that the forwarding table has room for.
        fdb_entries: FdbEntries = FdbEntries::default(), [fixed(NEEDS_A_RESTART)];
        /// The control socket.
        control: SocketPath = "/run/weir/control.sock".parse().expect("a constant that is a valid path"),
            [fixed(NEEDS_A_RESTART)];
        /// Where workers run.
        placement: PlacementConfig = PlacementConfig::default(), [];
        /// Who weir becomes when it was started with privileges.
        user: Option<UserName> = None, [fixed(NEEDS_A_RESTART)];
        /// The socket of the keeper, which holds what the next weir needs to go on with this one's front ends.
        keeper: Option<SocketPath> = None, [fixed(NEEDS_A_RESTART)];
        /// Whether the way to a front end that listens may lead by links that somebody else can make.
        allow_symlinks: bool = false, [fixed(NEEDS_A_RESTART)];
        /// The directory below which interfaces that are made while weir runs may have sockets that weir connects to.
        client_dir: Option<SocketPath> = None, [fixed(NEEDS_A_RESTART)];
        /// Who may use the API, and over what.
        api: ApiConfig = ApiConfig::default(), [];
    }
}

keys! {
    /// `placement`, `pin_vcpus` and `move_irqs` of `[switch]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PlacementConfig {
        /// The placement of workers.
        mode: PlacementMode = PlacementMode::Off, [named("placement")];
        /// Whether weir can also place guests' virtual processors.
        pin_vcpus: bool = false, [];
        /// Whether the interrupts of uplinks' cards come to the processors of the workers.
        move_irqs: bool = true, [];
    }
}

impl SwitchConfig {
    /// A switch with every default, with this control socket.
    pub fn new(control: SocketPath) -> Self {
        Self { control, ..Self::default() }
    }
}
