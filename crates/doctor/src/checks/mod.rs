//! One function for each fault. The functions read nothing but the facts.

mod attach;
mod machine;
mod traffic;

use crate::facts::{Facts, Finding};

/// A check: its name, under which the guide describes it, and its function.
pub struct Check {
    /// The name.
    pub name: &'static str,
    /// Looks for the fault in the facts.
    pub find: fn(&Facts, &mut Vec<Finding>),
}

/// All checks, in the order of the guide's table.
pub const CHECKS: &[Check] = &[
    Check { name: "not-running", find: attach::not_running },
    Check { name: "other-weir", find: machine::other_weir },
    Check { name: "file-bad", find: machine::file_bad },
    Check { name: "unlike-file", find: machine::unlike_file },
    Check { name: "waiting-socket-mode", find: attach::socket_mode },
    Check { name: "waiting-socket-missing", find: attach::socket_missing },
    Check { name: "waiting-other-path", find: attach::other_path },
    Check { name: "waiting-monitor", find: attach::waiting },
    Check { name: "on-demand", find: attach::on_demand },
    Check { name: "second-vm", find: attach::second_vm },
    Check { name: "memory-private", find: attach::memory_private },
    Check { name: "driver-absent", find: attach::driver_absent },
    Check { name: "halted", find: attach::halted },
    Check { name: "stopped", find: attach::stopped },
    Check { name: "session-fails", find: attach::session_fails },
    Check { name: "uplink-stopped", find: machine::uplink_stopped },
    Check { name: "uplink-down", find: machine::uplink_down },
    Check { name: "loop", find: attach::loop_found },
    Check { name: "uplinks-joined", find: attach::loop_ahead },
    Check { name: "queues-differ", find: attach::queues_differ },
    Check { name: "silent-ring", find: attach::silent_ring },
    Check { name: "src-mac", find: traffic::src_mac },
    Check { name: "vlan", find: traffic::vlan },
    Check { name: "vlan-alone", find: traffic::vlan_alone },
    Check { name: "filter-all", find: traffic::filter_all },
    Check { name: "group-all", find: traffic::group_all },
    Check { name: "overlay-host", find: traffic::overlay_host },
    Check { name: "way-out", find: machine::way_out },
    Check { name: "guest-address", find: traffic::guest_address },
    Check { name: "unanswered", find: traffic::unanswered },
    Check { name: "receiver-not-ready", find: traffic::receiver_not_ready },
    Check { name: "receiver-slow", find: traffic::receiver_slow },
    Check { name: "offloads", find: traffic::offloads },
    Check { name: "tx-disabled", find: traffic::tx_disabled },
    Check { name: "mtu", find: traffic::mtu },
    Check { name: "limits-of-port", find: traffic::limits_of_port },
    Check { name: "drops", find: traffic::other_drops },
    Check { name: "budget-no-cpu", find: traffic::budget_no_cpu },
    Check { name: "budget-late", find: traffic::budget_late },
    Check { name: "agent-absent", find: attach::agent_absent },
    Check { name: "no-records", find: attach::no_records },
    Check { name: "keeper-gone", find: machine::keeper_gone },
    Check { name: "thread-still", find: machine::thread_still },
    Check { name: "program-fails", find: machine::program_fails },
    Check { name: "unclosed", find: machine::unclosed },
    Check { name: "helper-ended", find: machine::helper_ended },
    Check { name: "seccomp", find: machine::seccomp },
    Check { name: "access-denied", find: machine::access_denied },
    Check { name: "descriptors-few", find: machine::descriptors_few },
    Check { name: "limit-near", find: machine::limit_near },
    Check { name: "kernel-old", find: machine::kernel_old },
    Check { name: "clocksource", find: machine::clocksource },
    Check { name: "cpus-few", find: machine::cpus_few },
    Check { name: "cpu-quota", find: machine::cpu_quota },
    Check { name: "caches-many", find: machine::caches_many },
    Check { name: "irq-one-cpu", find: machine::irq_one_cpu },
    Check { name: "hugepages-idle", find: machine::hugepages_idle },
    Check { name: "qemu-old", find: machine::qemu_old },
    Check { name: "qemu-vectors", find: machine::qemu_vectors },
];
