//! A user-space guest at a socket of weir that answers ARP and ping at its address until it is interrupted, and
//! reconnects whenever weir comes back:
//!
//! ```sh
//! cargo run --release -p weir-vif --example answer -- /run/weir/web0.sock 52:54:00:77:00:03 10.77.0.3 [packed]
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use weir_testing::echo::answer;
use weir_vif::{Features, Health, Options, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload};

/// Interval of the checks that weir still serves, and of the attempts to reconnect.
const INTERVAL: Duration = Duration::from_millis(200);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [socket, mac, ip, rings @ ..] = args.as_slice() else {
        return Err("usage: answer SOCKET MAC IP [packed]".into());
    };
    let (mac, ip): (Mac, Ipv4Addr) = (mac.parse()?, ip.parse()?);
    let mut options = Options::new(mac);
    if rings.first().is_some_and(|rings| rings == "packed") {
        options.required = options.required | Features::RING_PACKED;
    }
    loop {
        match Vif::connect(socket, &options) {
            Ok(vif) => {
                println!("answering at {ip}");
                serve(vif, mac, ip)?;
            }
            Err(error) => println!("{error}"),
        }
        thread::sleep(INTERVAL);
    }
}

/// Answers until the session ends.
fn serve(mut vif: Vif, mac: Mac, ip: Ipv4Addr) -> Result<(), Box<dyn Error>> {
    let mut pair = vif.queue_pairs().remove(0);
    let mut frame = Vec::new();
    while matches!(vif.health()?, Health::Connected) {
        pair.wait(WaitFor::Receive, INTERVAL)?;
        while pair.recv_into(&mut frame).is_some() {
            if answer(&mut frame, mac, ip).is_some() {
                match pair.send(&frame, &Offload::NONE) {
                    // A frame that finds the ring full gets no answer.
                    Ok(()) | Err(SendError::Full) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        pair.flush();
    }
    Ok(())
}
