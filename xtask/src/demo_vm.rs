//! `make demo-vm`: two Linux guests on weir.

use std::time::Duration;

use weir_bed::{
    address,
    error::Result,
    iperf::{self, Tcp},
    lab::Lab,
    qemu::{Guest, GuestSpec},
    switch::Switch,
    weir::{self, Setup, Weir},
};

use crate::shown::{Shown, Step};

const PATIENCE: Duration = Duration::from_secs(30);

/// Time for which iperf3 sends, in each direction.
const SECONDS: u64 = 5;

const STEPS: &[Step] = &[
    Step { title: "weir starts with two interfaces", seconds: 1 },
    Step { title: "Two guests boot Debian's kernel, under QEMU without KVM", seconds: 4 },
    Step { title: "One pings the other", seconds: 4 },
    Step { title: "TCP each way", seconds: 2 * SECONDS + 2 },
];

/// Boots two guests, pings, runs iperf3 in both directions and prints the results.
pub fn run(lab: &Lab) -> Result<()> {
    let mut shown = Shown::new(STEPS);
    shown.step();
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let mut specs = Vec::new();
    for index in 0..2 {
        let plug = weir.plug(index)?;
        let command = format!("qemu-system-x86_64 ... {}", plug.qemu_args.join(" "));
        shown.show(&command, "");
        let name = weir::name(index);
        specs.push(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug });
    }
    shown.step();
    let mut guests = Guest::boot_all(&lab.image, &specs, weir.dir())?;
    let [first, second] = guests.as_mut_slice() else { unreachable!("two specs, two guests") };
    shown.show("uname -sr   # guest 1", &first.run("uname -sr", PATIENCE)?);
    shown.step();
    let ping = format!("ping -c 4 {}", address::ip(1));
    shown.show(&format!("{ping}   # guest 1"), &first.run(&ping, PATIENCE)?);

    shown.step();
    iperf::serve(first, iperf::PORT)?;
    iperf::serve(second, iperf::PORT)?;
    let forth = Tcp::to(address::ip(1), SECONDS).run(first)?;
    shown.say(&format!("iperf3, guest 1 to guest 2: {:6.2} Gbit/s", forth.gbit_per_second()));
    let back = Tcp::to(address::ip(0), SECONDS).run(second)?;
    shown.say(&format!("iperf3, guest 2 to guest 1: {:6.2} Gbit/s", back.gbit_per_second()));
    shown.end();
    weir.stop()
}
