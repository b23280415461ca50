//! A user-space guest at a socket of a running weir that answers ARP and ping at its address, for any other
//! guest to see; it stays until it is interrupted:
//!
//! ```sh
//! cargo run --release -p weir-vif --example answer -- /run/weir/web0.sock 52:54:00:77:00:03 10.77.0.3
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::time::Duration;

use weir_vif::{Options, SendError, Vif, WaitFor};
use weir_wire::{Mac, Offload, Sum, ethertype};

/// Bytes before ARP's or IP's own.
const ETHERNET: usize = 14;
/// IP's header, without options.
const IP: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [socket, mac, ip] = args.as_slice() else {
        return Err("usage: answer SOCKET MAC IP".into());
    };
    let (mac, ip): (Mac, Ipv4Addr) = (mac.parse()?, ip.parse()?);
    let mut vif = Vif::connect(socket, &Options::new(mac))?;
    let mut pair = vif.queue_pairs().remove(0);
    println!("answering at {ip}");
    let mut frame = Vec::new();
    loop {
        pair.wait(WaitFor::Receive, Duration::from_secs(1))?;
        while pair.recv_into(&mut frame).is_some() {
            if answer(&mut frame, mac, ip).is_some() {
                match pair.send(&frame, &Offload::NONE) {
                    // Who sends faster than it is answered is not answered.
                    Ok(()) | Err(SendError::Full) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        pair.flush();
    }
}

/// Makes the answer of a question in its place; `None` if nobody asks `ip` anything.
fn answer(frame: &mut [u8], mac: Mac, ip: Ipv4Addr) -> Option<()> {
    let kind = u16::from_be_bytes(frame.get(12..ETHERNET)?.try_into().ok()?);
    match kind {
        ethertype::ARP => answer_arp(frame.get_mut(ETHERNET..)?, mac, ip)?,
        ethertype::IPV4 => answer_echo(frame.get_mut(ETHERNET..)?, ip)?,
        _ => return None,
    }
    frame.copy_within(6..12, 0);
    frame.get_mut(6..12)?.copy_from_slice(&mac.0);
    Some(())
}

/// RFC 826: who asks becomes the target, and the other way round.
fn answer_arp(arp: &mut [u8], mac: Mac, ip: Ipv4Addr) -> Option<()> {
    let (operation, target) = (arp.get(6..8)?, arp.get(24..28)?);
    if operation != [0, 1] || target != ip.octets() {
        return None;
    }
    arp[7] = 2;
    arp.copy_within(8..18, 18);
    arp[8..14].copy_from_slice(&mac.0);
    arp[14..18].copy_from_slice(&ip.octets());
    Some(())
}

/// RFC 792: an echo request (type 8) becomes an echo reply (type 0).
fn answer_echo(packet: &mut [u8], ip: Ipv4Addr) -> Option<()> {
    let length = usize::from(u16::from_be_bytes(packet.get(2..4)?.try_into().ok()?));
    // Short frames are padded.
    let packet = packet.get_mut(..length)?;
    let (header, icmp) = packet.split_at_mut_checked(IP)?;
    if header[0] != 0x45
        || header[9] != 1
        || header[16..20] != ip.octets()
        || icmp.first() != Some(&8)
    {
        return None;
    }
    // The addresses change places: IP's checksum stays what it was.
    header.copy_within(12..16, 16);
    header[12..16].copy_from_slice(&ip.octets());
    icmp[0] = 0;
    icmp.get_mut(2..4)?.fill(0);
    let mut sum = Sum::new();
    sum.add(icmp);
    icmp.get_mut(2..4)?.copy_from_slice(&sum.finish().to_be_bytes());
    Some(())
}
