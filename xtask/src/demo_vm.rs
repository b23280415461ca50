//! `make demo-vm`: two real Linux guests on weir.

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

const PATIENCE: Duration = Duration::from_secs(30);

/// How long iperf3 sends, each way.
const SECONDS: u64 = 5;

/// Boots two guests, pings, runs iperf3 both ways and prints what came of it.
pub fn run(lab: &Lab) -> Result<()> {
    println!("weir: starting with two interfaces");
    let weir = Weir::start(lab, &Setup::vifs(2))?;
    let mut specs = Vec::new();
    for index in 0..2 {
        let plug = weir.plug(index)?;
        println!("\nguest {}: qemu-system-x86_64 ... {}", index + 1, plug.qemu_args.join(" "));
        let name = weir::name(index);
        specs.push(GuestSpec { name, cidr: address::cidr(index), vcpus: 1, plug });
    }
    println!("\nbooting two guests with Debian's kernel (QEMU without KVM: seconds, not less)");
    let mut guests = Guest::boot_all(&lab.image, &specs, weir.dir())?;
    let [first, second] = guests.as_mut_slice() else { unreachable!("two specs, two guests") };
    print!("\n{}", indented("guest 1", &first.run("uname -sr", PATIENCE)?));
    let ping = format!("ping -c 4 {}", address::ip(1));
    print!("\n{}", indented("guest 1", &first.run(&ping, PATIENCE)?));

    iperf::serve(first, iperf::PORT)?;
    iperf::serve(second, iperf::PORT)?;
    println!();
    let forth = Tcp::to(address::ip(1), SECONDS).run(first)?;
    println!("iperf3, guest 1 to guest 2: {:6.2} Gbit/s", forth.gbit_per_second());
    let back = Tcp::to(address::ip(0), SECONDS).run(second)?;
    println!("iperf3, guest 2 to guest 1: {:6.2} Gbit/s", back.gbit_per_second());
    weir.stop()
}

fn indented(who: &str, text: &str) -> String {
    text.lines().filter(|line| !line.is_empty()).map(|line| format!("{who} | {line}\n")).collect()
}
