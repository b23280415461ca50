//! TCP between two guests of one CPU each, virtio-net as QEMU and Linux set it up by default.

use super::Contender;
use crate::{
    address,
    error::Result,
    iperf::{self, Tcp},
    lab::Lab,
    qemu::{Guest, GuestSpec},
};

/// How long a round's transfer is counted, after [`OMIT_SECONDS`].
const SECONDS: u64 = 5;

/// Slow start is not what is compared.
const OMIT_SECONDS: u64 = 1;

/// What arrives at the second guest when the first sends by one connection.
pub(super) fn gbit_per_second(lab: &Lab, contender: Contender) -> Result<f64> {
    let switch = contender.start(lab, None)?;
    let specs = [0, 1].map(|index| {
        let plug = switch.plug(index)?;
        let name = format!("{}-{index}", contender.name());
        Ok(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug })
    });
    let specs: Vec<_> = specs.into_iter().collect::<Result<_>>()?;
    let logs = lab.workspace.run_dir("guests")?;
    let mut guests = Guest::boot_all(&lab.image, &specs, &logs)?;
    let [client, server] = guests.as_mut_slice() else { unreachable!("two specs, two guests") };
    iperf::serve(server, iperf::PORT)?;
    let tcp = Tcp { omit_seconds: OMIT_SECONDS, ..Tcp::to(address::ip(1), SECONDS) };
    Ok(tcp.run(client)?.gbit_per_second())
}
