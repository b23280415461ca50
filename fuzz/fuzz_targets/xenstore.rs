//! Any bytes from xenstore: unrequested replies, wrong lengths, random names and values. The follower of vifs must
//! end with a named error or continue, and must release each vif that it has connected.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{FrontKeys, Offer, Serve, VifId, VifKeys, Vifs};

/// A server that answers every request with the input. A reply's type and request ID are set to fit if the input says
/// so, or else hardly any reply would be read.
struct Script<'i> {
    rest: &'i [u8],
    asked: [u8; 8],
    out: Vec<u8>,
}

impl Read for Script<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.out.is_empty() {
            self.reply();
        }
        let len = buffer.len().min(self.out.len());
        buffer[..len].copy_from_slice(&self.out[..len]);
        self.out.drain(..len);
        Ok(len)
    }
}

impl Script<'_> {
    /// Makes the next message from a byte of options, a byte of length, and the payload.
    fn reply(&mut self) {
        let [how, len, rest @ ..] = self.rest else { return };
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        self.rest = rest;
        let [k0, k1, k2, k3, r0, r1, r2, r3] = self.asked;
        let kind = match how % 4 {
            0 | 1 => u32::from_le_bytes([k0, k1, k2, k3]),
            2 => 15,
            _ => u32::from(how / 4 % 20),
        };
        let request = if how & 0x80 == 0 { u32::from_le_bytes([r0, r1, r2, r3]) } else { 7 };
        let len = payload.len() as u32 + u32::from(how & 0x40 != 0) * 5000;
        for word in [kind, request, 0, len] {
            self.out.extend(word.to_le_bytes());
        }
        self.out.extend(payload);
    }
}

impl Write for Script<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(&asked) = bytes.first_chunk::<8>() {
            self.asked = asked;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A switch that accepts each vif.
#[derive(Default)]
struct All {
    connected: BTreeSet<VifId>,
}

impl Serve for All {
    fn offer(&mut self, _vif: VifId, _keys: &VifKeys) -> Option<Offer> {
        Some(Offer {
            queues_max: 2,
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: true,
            ipv6_csum_offload: true,
            split_event_channels: true,
            multicast_control: true,
            ctrl_ring: true,
        })
    }

    fn connect(&mut self, vif: VifId, _keys: &VifKeys, front: &FrontKeys) -> Result<(), String> {
        assert!((1..=2).contains(&front.queues.len()), "as many queues as were offered");
        assert!(self.connected.insert(vif), "connected twice");
        Ok(())
    }

    fn disconnect(&mut self, vif: VifId) {
        self.connected.remove(&vif);
    }

    fn forget(&mut self, vif: VifId) {
        assert!(!self.connected.contains(&vif), "forgotten while it is served");
    }

    fn closed(&mut self, _: VifId, _: &str) {}

    fn refused(&mut self, _: &StoreError) {}
}

weir_fuzz::target!(|input: &[u8]| {
    let script = Script { rest: input, asked: [0; 8], out: Vec::new() };
    let Ok(mut vifs) = Vifs::new(Client::new(script)) else { return };
    let mut all = All::default();
    // Each round reads, so that the input is used up.
    while vifs.receive().is_ok() {
        if vifs.poll(&mut all).is_err() {
            return;
        }
    }
});
