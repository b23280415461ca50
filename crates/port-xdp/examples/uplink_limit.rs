//! An uplink's port without a switch: one burst of UDP packets, delivered over and over, shows the kernel's limit
//! for the uplink:
//!
//! ```sh
//! cargo run --release -p weir-port-xdp --example uplink_limit -- af_xdp eth0 64 5
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::burst::{Pieces, Scratch, TakenChain};
use weir_engine::{Outgoing, Port, PortCounters};
use weir_guestmem::HostBuffer;
use weir_limits::BURST_MAX;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::{FramePort, Tap, TapOptions};
use weir_port_xdp::{XdpInterface, XdpOptions, XdpPort};
use weir_wire::VnetHdr;
use weir_wire::checksum::ipv4_header_checksum;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [kind, interface, frame_bytes, seconds] = args.as_slice() else {
        return Err("usage: uplink_limit tap|af_packet|af_xdp INTERFACE FRAME_BYTES SECONDS".into());
    };
    let (frame_bytes, seconds): (usize, u32) = (frame_bytes.parse()?, seconds.parse()?);
    let counters = Arc::new(PortCounters::default());
    let port = open(kind, interface, &counters)?;

    let frame = udp(frame_bytes)?;
    let buffers: Vec<_> = (0..BURST_MAX).map(|_| buffer(&frame)).collect();
    let mut scratch = Scratch::default();
    let mut burst = scratch.lend();
    for buffer in &buffers {
        let Some(whole) = buffer.slice(0, buffer.len()) else { continue };
        let pieces = Pieces::Only(whole);
        let chain = TakenChain { token: 0, len: buffer.len() as u32, pieces };
        burst.add(chain, VnetHdr::LEN, 0)?;
    }
    let frames: Vec<_> = (0..BURST_MAX as u16).map(Outgoing::untagged).collect();
    for second in 1..=seconds {
        let before = counters.rx[0].frames.get();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            port.deliver(0, &burst, &frames);
        }
        println!("{second:3} s  {:9} frames/s", counters.rx[0].frames.get() - before);
    }
    Ok(())
}

fn open(
    kind: &str,
    interface: &str,
    counters: &Arc<PortCounters>,
) -> Result<Box<dyn Port>, Box<dyn Error>> {
    let (name, queues, mtu) = (interface.to_owned(), 1, None);
    let counters = Arc::clone(counters);
    Ok(match kind {
        "tap" => {
            let tap = Tap::open(&TapOptions { name, queues, mtu, mac: None })?;
            Box::new(FramePort::new(tap, counters))
        }
        "af_packet" => {
            let socket = PacketSocket::open(&PacketOptions { name, queues, mtu })?;
            Box::new(FramePort::new(socket, counters))
        }
        "af_xdp" => {
            let interface = XdpInterface::open(&XdpOptions { name, queues, mtu })?;
            Box::new(XdpPort::new(interface, counters))
        }
        other => return Err(format!("no such kind of uplink: {other}").into()),
    })
}

/// A packet to an address that the host does not have, without a UDP checksum.
fn udp(frame_bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    const HEADERS: usize = 14 + 20 + 8;
    let payload = frame_bytes.checked_sub(HEADERS).ok_or("no room for the headers")?;
    let udp_len = u16::try_from(8 + payload)?;
    let mut frame = vec![0x52, 0x54, 0, 0, 1, 2, 0x52, 0x54, 0, 0, 1, 1, 8, 0, 0x45, 0];
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 1, 10, 0, 1, 2]);
    let checksum = ipv4_header_checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([0x9c, 0x40, 0x14, 0x51]); // ports 40000 and 5201
    frame.extend(udp_len.to_be_bytes());
    frame.resize(frame_bytes, 0);
    Ok(frame)
}

/// `frame` as a guest has it in its memory, with a `virtio_net_hdr`.
fn buffer(frame: &[u8]) -> HostBuffer {
    let buffer = HostBuffer::new(VnetHdr::LEN + frame.len());
    if let Some(slice) = buffer.slice(VnetHdr::LEN, frame.len()) {
        slice.write(frame);
    }
    buffer
}
