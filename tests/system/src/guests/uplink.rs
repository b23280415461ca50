//! Traffic through an uplink into a network namespace.

use weir_bed::{
    address,
    error::{Result, check},
    iperf::{self, Direction, Tcp, Transfer},
    lab::Lab,
    process::Process,
    uplink::Uplink,
    weir::{Setup, Weir},
};

use super::{
    FLOWS_SECONDS, boot,
    traffic::{no_checksum_errors, ping},
};

/// The namespace's own address in the guests' subnet.
const HOST: u8 = 100;

/// A low bound: the test checks that traffic flows, not its rate.
const TCP_BITS_PER_SECOND_MIN: f64 = 50e6;

pub(super) fn tap_uplink_joins_guest_and_namespace(lab: &Lab) -> Result<()> {
    joins_guest_and_namespace(lab, Uplink::Tap)
}

pub(super) fn af_xdp_uplink_joins_guest_and_namespace(lab: &Lab) -> Result<()> {
    joins_guest_and_namespace(lab, Uplink::AfXdp)
}

fn joins_guest_and_namespace(lab: &Lab, uplink: Uplink) -> Result<()> {
    let weir = Weir::start(lab, &Setup { uplink: Some(uplink), ..Setup::vifs(1) })?;
    let site = weir.uplink()?;
    let netns = site.host();
    netns.configure(site.interface(), &address::cidr(HOST))?;
    let [mut guest] = boot(lab, &weir)?;

    ping(&mut guest, &address::ip(HOST))?;
    let busybox = lab.image.busybox.to_string_lossy();
    netns.exec(&[&busybox, "ping", "-c", "3", "-W", "5", &address::ip(0)])?;

    // The namespace is the server first and the client second, each time in both directions.
    let log = weir.dir().join("iperf3.log");
    let server = Process::start_logged(&["iperf3", "-s"], &netns.placement(), &log)?;
    weir_bed::process::wait_until("iperf3 to listen", iperf_patience(), || {
        Ok(netns
            .exec(&["ss", "-ltnH", "sport", "=", &format!(":{}", iperf::PORT)])?
            .contains("LISTEN"))
    })?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let tcp = Tcp { direction, ..Tcp::to(address::ip(HOST), FLOWS_SECONDS) };
        flows(&tcp, "guest as client", tcp.run(&mut guest)?)?;
    }
    server.kill();

    iperf::serve(&mut guest, iperf::PORT)?;
    for direction in [Direction::ToServer, Direction::ToClient] {
        let tcp = Tcp { direction, ..Tcp::to(address::ip(0), FLOWS_SECONDS) };
        flows(&tcp, "namespace as client", tcp.run_by(|argv| netns.exec(argv))?)?;
    }
    no_checksum_errors(&mut guest)
}

fn iperf_patience() -> std::time::Duration {
    std::time::Duration::from_secs(10)
}

fn flows(tcp: &Tcp, who: &str, transfer: Transfer) -> Result<()> {
    check(transfer.bits_per_second > TCP_BITS_PER_SECOND_MIN, || {
        format!("{who}, {:?}: only {:.3} Gbit/s", tcp.direction, transfer.gbit_per_second())
    })
}
