//! Answers to ARP and ping, which overwrite the question: a guest without a network stack can thus
//! be reached.

use std::net::Ipv4Addr;

use weir_wire::{Mac, ethertype};

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of the IP header, without options.
const IP: usize = 20;
/// Mask of the fragment offset, in the word that also has the flag for more fragments.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Turns a question for `ip` into its answer; `None` if the frame is no question for `ip`.
///
/// Each fragment of an echo request becomes a fragment of the reply, independently of the others.
pub fn answer(frame: &mut [u8], mac: Mac, ip: Ipv4Addr) -> Option<()> {
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

/// RFC 826: sender and target change places.
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
    let (header, icmp) = packet.get_mut(..length)?.split_at_mut_checked(IP)?;
    if header[0] != 0x45 || header[9] != 1 || header[16..20] != ip.octets() {
        return None;
    }
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET == 0 {
        let [8, _, high, low] = *icmp.first_chunk_mut::<4>()? else { return None };
        icmp[0] = 0;
        // RFC 1624: the first word of the sum has decreased by 8 << 8.
        let (sum, carry) = u16::from_be_bytes([high, low]).overflowing_add(8 << 8);
        icmp[2..4].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    }
    // The addresses change places, which leaves the IP checksum as it is.
    header.copy_within(12..16, 16);
    header[12..16].copy_from_slice(&ip.octets());
    Some(())
}

#[cfg(test)]
mod tests {
    use weir_wire::Sum;

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const IP_HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    /// A fragment at `offset` (in units of 8 bytes) with `data` from another host.
    fn fragment(offset: u16, data: &[u8]) -> Vec<u8> {
        let mut frame = [&[2, 0, 0, 0, 0, 1][..], &[2, 0, 0, 0, 0, 9], &[8, 0, 0x45, 0]].concat();
        frame.extend((IP as u16 + data.len() as u16).to_be_bytes());
        frame.extend([0, 7]);
        frame.extend(offset.to_be_bytes());
        frame.extend([64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
        frame.extend(data);
        frame
    }

    fn sum(bytes: &[u8]) -> u16 {
        let mut sum = Sum::new();
        sum.add(bytes);
        sum.finish()
    }

    #[test]
    fn an_answer_has_the_right_checksum_and_goes_back() {
        for identifier in 0..=u16::MAX {
            let mut icmp = [&[8, 0, 0, 0][..], &identifier.to_be_bytes(), &[0, 1]].concat();
            let checksum = sum(&icmp);
            icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
            let mut frame = fragment(0, &icmp);
            answer(&mut frame, MAC, IP_HERE).unwrap();
            assert_eq!(frame[34], 0);
            assert_eq!(sum(&frame[34..]), 0, "{identifier}");
            assert_eq!((frame[0..6].last(), &frame[6..12]), (Some(&9), &MAC.0[..]));
            assert_eq!((&frame[26..30], &frame[30..34]), (&[10, 0, 0, 1][..], &[10, 0, 0, 9][..]));
        }
    }

    #[test]
    fn a_later_fragment_goes_back_as_it_came() {
        let mut frame = fragment(185, &[8, 1, 2, 3]);
        answer(&mut frame, MAC, IP_HERE).unwrap();
        assert_eq!(frame[34..], [8, 1, 2, 3]);
        assert_eq!(answer(&mut fragment(0, &[0, 0, 0, 0]), MAC, IP_HERE), None, "a reply");
        assert_eq!(answer(&mut [0; 13], MAC, IP_HERE), None);
    }
}
