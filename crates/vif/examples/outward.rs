//! A user-space guest at a socket of a running weir that sends UDP packets to an outside address as fast as its
//! ring takes them. It polls, as DPDK does, and asks for no offload, so that uplinks with and without offloads do
//! the same work:
//!
//! ```sh
//! cargo run --release -p weir-vif --example outward -- /run/weir/web0.sock 64 5
//! ```

mod support;

use std::error::Error;
use std::time::{Duration, Instant};

use weir_vif::load::Flow;
use weir_vif::{QueuePair, SendError};
use weir_wire::Offload;
use weir_wire::checksum::ipv4_header_checksum;

/// Packets sent per notification of the ring.
const BURST: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [from, frame_bytes, seconds] = args.as_slice() else {
        return Err("usage: outward FROM.sock FRAME_BYTES SECONDS".into());
    };
    let (frame_bytes, seconds): (usize, u32) = (frame_bytes.parse()?, seconds.parse()?);
    let flow = support::flow();
    let frame = udp(&flow, frame_bytes)?;
    let mut sender = support::join(from, flow.local)?;
    let mut pair = sender.queue_pairs().remove(0);
    pair.suppress_calls();

    for second in 1..=seconds {
        let start = Instant::now();
        let mut sent: u64 = 0;
        while start.elapsed() < Duration::from_secs(1) {
            sent += u64::from(burst(&mut pair, &frame)?);
            // Received frames do not matter, but must not fill the ring.
            while pair.recv(|_| ()).is_some() {}
        }
        println!("{second:3} s  {sent:9} frames/s");
    }
    Ok(())
}

/// Sends packets until the ring is full, one burst at most.
fn burst(pair: &mut QueuePair, frame: &[u8]) -> Result<u32, SendError> {
    for sent in 0..BURST {
        match pair.send(frame, &Offload::NONE) {
            Ok(()) => {}
            Err(SendError::Full) => {
                pair.flush();
                return Ok(sent);
            }
            Err(error) => return Err(error),
        }
    }
    pair.flush();
    Ok(BURST)
}

/// Builds a packet of the flow, without a UDP checksum.
fn udp(flow: &Flow, frame_bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    const HEADERS: usize = 14 + 20 + 8;
    let payload = frame_bytes.checked_sub(HEADERS).ok_or("no room for the headers")?;
    let udp_len = u16::try_from(8 + payload)?;
    let mut frame = [flow.remote.mac.0, flow.local.mac.0].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([flow.local.ip.octets(), flow.remote.ip.octets()].concat());
    let checksum = ipv4_header_checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    for number in [flow.local_port, flow.remote_port, udp_len] {
        frame.extend(number.to_be_bytes());
    }
    frame.resize(frame_bytes, 0);
    Ok(frame)
}
