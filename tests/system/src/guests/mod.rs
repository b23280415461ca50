//! Tests of weir with machines that it does not control: guests, the kernel, DPDK.

mod agent;
mod backend_program;
mod card;
pub mod fabric;
mod looks;
mod metrics;
pub mod moves;
mod page;
mod restart;
mod top;
pub(crate) mod traffic;
mod uplink;

use std::{path::Path, time::Instant};

use weir_bed::{
    address,
    error::{Result, Tally},
    lab::Lab,
    qemu::{Guest, GuestSpec},
    switch::Switch,
    weir::{self, Weir},
};

/// Duration of a transfer that must flow at any rate.
const FLOWS_SECONDS: u64 = 1;

/// A test with its name.
pub struct SystemTest {
    /// The statement that holds if the test passes.
    pub name: &'static str,
    run: fn(&Lab) -> Result<()>,
}

/// All tests that other load makes slower but not wrong, in their order.
pub const ALL: &[SystemTest] = &[
    SystemTest { name: "two_guests_ping_each_other", run: traffic::two_guests_ping_each_other },
    SystemTest { name: "guest_sends_tcp_to_guest", run: traffic::guest_sends_tcp_to_guest },
    SystemTest { name: "packed_ring_guest_sends_tcp", run: traffic::packed_ring_guest_sends_tcp },
    SystemTest {
        name: "weir_reaches_a_guests_bounce_buffers_and_no_other_half",
        run: traffic::weir_reaches_a_guests_bounce_buffers_and_no_other_half,
    },
    SystemTest {
        name: "guest_behind_a_virtual_iommu_sends_tcp",
        run: traffic::guest_behind_a_virtual_iommu_sends_tcp,
    },
    SystemTest {
        name: "testpmd_in_a_guest_answers_behind_its_virtual_iommu",
        run: traffic::testpmd_in_a_guest_answers_behind_its_virtual_iommu,
    },
    SystemTest { name: "guest_sends_udp_to_guest", run: traffic::guest_sends_udp_to_guest },
    SystemTest { name: "file_arrives_unchanged", run: traffic::file_arrives_unchanged },
    SystemTest {
        name: "tap_uplink_joins_guest_and_namespace",
        run: uplink::tap_uplink_joins_guest_and_namespace,
    },
    SystemTest {
        name: "af_xdp_uplink_joins_guest_and_namespace",
        run: uplink::af_xdp_uplink_joins_guest_and_namespace,
    },
    SystemTest {
        name: "network_card_gathers_and_is_always_left_as_it_was_found",
        run: card::network_card_gathers_and_is_always_left_as_it_was_found,
    },
    SystemTest {
        name: "killed_guest_disturbs_nobody_and_its_socket_serves_again",
        run: restart::killed_guest_disturbs_nobody_and_its_socket_serves_again,
    },
    SystemTest {
        name: "killed_weir_comes_back_and_guests_go_on",
        run: restart::killed_weir_comes_back_and_guests_go_on,
    },
    SystemTest {
        name: "with_a_keeper_no_guest_connects_again",
        run: restart::with_a_keeper_no_guest_connects_again,
    },
    SystemTest {
        name: "interface_of_a_monitor_that_listens_comes_outlives_weir_and_goes",
        run: restart::interface_of_a_monitor_that_listens_comes_outlives_weir_and_goes,
    },
    SystemTest {
        name: "guest_moves_to_another_weir_and_back",
        run: moves::guest_moves_to_another_weir_and_back,
    },
    SystemTest {
        name: "guest_with_two_queues_and_packed_rings_moves",
        run: moves::guest_with_two_queues_and_packed_rings_moves,
    },
    SystemTest {
        name: "guests_on_two_hosts_reach_each_other_and_one_moves",
        run: fabric::guests_on_two_hosts_reach_each_other_and_one_moves,
    },
    SystemTest {
        name: "agent_sets_and_always_restores_the_guests_timer",
        run: agent::agent_sets_and_always_restores_the_guests_timer,
    },
    SystemTest {
        name: "auto_has_a_guest_poll_while_datagrams_come",
        run: agent::auto_has_a_guest_poll_while_datagrams_come,
    },
    SystemTest {
        name: "backend_program_joins_guest_and_tap",
        run: backend_program::backend_program_joins_guest_and_tap,
    },
    SystemTest {
        name: "page_shows_the_switch_in_a_browser",
        run: page::page_shows_the_switch_in_a_browser,
    },
    SystemTest { name: "two_queue_guest_uses_both", run: traffic::two_queue_guest_uses_both },
    SystemTest { name: "vlans_are_separate", run: traffic::vlans_are_separate },
    SystemTest {
        name: "groups_judge_programs_of_guests_as_the_kernels_conntrack_does",
        run: traffic::groups_judge_programs_of_guests_as_the_kernels_conntrack_does,
    },
    SystemTest {
        name: "two_uplinks_into_one_lan_are_blocked_until_the_loop_is_cut",
        run: uplink::two_uplinks_into_one_lan_are_blocked_until_the_loop_is_cut,
    },
    SystemTest {
        name: "a_bond_whose_cables_are_cut_loses_few_frames",
        run: uplink::a_bond_whose_cables_are_cut_loses_few_frames,
    },
    SystemTest {
        name: "a_bond_speaks_lacp_with_the_kernels_bonding_driver",
        run: uplink::a_bond_speaks_lacp_with_the_kernels_bonding_driver,
    },
    SystemTest {
        name: "top_shows_traffic_and_survives_keys_sizes_and_the_end_of_weir",
        run: top::top_shows_traffic_and_survives_keys_sizes_and_the_end_of_weir,
    },
    SystemTest {
        name: "prometheus_scrapes_weir_and_every_query_of_the_dashboard_has_data",
        run: metrics::prometheus_scrapes_weir_and_every_query_of_the_dashboard_has_data,
    },
    SystemTest {
        name: "tshark_reads_a_capture_from_a_pipe_with_directions_and_reasons",
        run: looks::tshark_reads_a_capture_from_a_pipe_with_directions_and_reasons,
    },
    SystemTest {
        name: "doctor_finds_faults_of_a_real_host_and_nothing_in_health",
        run: looks::doctor_finds_faults_of_a_real_host_and_nothing_in_health,
    },
    SystemTest {
        name: "testpmd_forwards_with_one_queue",
        run: backend_program::forwards_with_one_queue,
    },
    SystemTest {
        name: "testpmd_forwards_with_two_queues",
        run: backend_program::forwards_with_two_queues,
    },
    SystemTest {
        name: "testpmd_forwards_over_packed_rings",
        run: backend_program::forwards_over_packed_rings,
    },
];

/// Tests that compare counts. A guest that has to wait for a processor takes other numbers of interrupts.
pub const UNDISTURBED: &[SystemTest] = &[
    SystemTest {
        name: "each_way_to_coalesce_saves_a_linux_guests_interrupts",
        run: agent::each_way_to_coalesce_saves_a_linux_guests_interrupts,
    },
    SystemTest {
        name: "containers_save_a_linux_guests_interrupts_and_adapt_to_a_low_rate",
        run: agent::containers_save_a_linux_guests_interrupts_and_adapt_to_a_low_rate,
    },
];

impl SystemTest {
    /// Runs the test and prints the result.
    pub fn tally(&self, lab: &Lab) -> Tally {
        let start = Instant::now();
        let result = (self.run)(lab);
        let (name, seconds) = (self.name, start.elapsed().as_secs_f32());
        match result {
            Ok(()) => {
                println!("system test {name} ... ok ({seconds:.1} s)");
                Tally::passed()
            }
            Err(error) => {
                println!("system test {name} ... FAILED ({seconds:.1} s)\n{error}");
                Tally::failed(format!("system test {name}: {error}"))
            }
        }
    }
}

/// The guest of interface `index`, with the address of that number and one CPU.
fn guest_spec(weir: &Weir, index: u8) -> Result<GuestSpec> {
    Ok(GuestSpec {
        name: weir::name(index),
        cidr: address::cidr(index),
        vcpus: 1,
        plug: weir.plug(index)?,
    })
}

fn boot<const N: usize>(lab: &Lab, weir: &Weir) -> Result<[Guest; N]> {
    let specs: Vec<_> =
        (0_u8..).take(N).map(|index| guest_spec(weir, index)).collect::<Result<_>>()?;
    boot_specs(lab, &specs, weir.dir())
}

fn boot_specs<const N: usize>(lab: &Lab, specs: &[GuestSpec], logs: &Path) -> Result<[Guest; N]> {
    let guests = Guest::boot_all(&lab.image, specs, logs)?;
    guests.try_into().map_err(|_| weir_bed::error::Error::Check(format!("{N} guests were to boot")))
}
