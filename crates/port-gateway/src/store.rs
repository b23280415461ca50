//! The file in which leases outlive weir.
//!
//! A confined weir opens no file and renames none, so the file is open from the start, and has two places. Each is
//! written whole, in turn, with a number that grows and a sum of its bytes: a weir that is killed while it writes leaves
//! the other place as it was. Times in the file are the wall clock's, since it outlives the machine's uptime.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_limits::{LEASES_BYTES_MAX, LEASES_MAX};
use weir_wire::Mac;

use crate::leases::{Client, Hold, Lease, Leases};

#[cfg(test)]
mod tests;

/// What a place begins with, before the number, the length and the sum of what follows, each of eight bytes.
const MAGIC: [u8; 8] = *b"weirlea1";
const HEADER_LEN: usize = 32;
const PLACE_LEN: u64 = (HEADER_LEN + LEASES_BYTES_MAX) as u64;

/// Leases in a file.
#[derive(Debug)]
pub struct Store {
    file: File,
    /// Of the last place that was written.
    number: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    address: Ipv4Addr,
    vif: String,
    mac: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    client_id: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    declined: bool,
    /// Seconds since 1970.
    until: u64,
}

impl Store {
    /// Of a file that is open for reading and writing.
    pub fn new(file: File) -> Self {
        Self { file, number: 0 }
    }

    /// What was saved last, as seen at `now_secs` of the machine's clock. Nothing is longer than `lease_secs` from now.
    ///
    /// # Errors
    /// Of reading.
    pub fn load(&mut self, now_secs: u32, lease_secs: u32) -> io::Result<Leases> {
        let places = [self.read(0)?, self.read(1)?];
        let Some((number, text)) = places.into_iter().flatten().max_by_key(|(number, _)| *number)
        else {
            return Ok(Leases::default());
        };
        self.number = number;
        let all: Vec<Written> = serde_json::from_slice(&text)?;
        let wall = wall_secs();
        let mut leases = Leases::default();
        for written in all.into_iter().take(LEASES_MAX) {
            let (Ok(mac), Some(id)) = (written.mac.parse::<Mac>(), bytes_of(&written.client_id))
            else {
                continue;
            };
            // By a clock that was set meanwhile, a lease would never end.
            let left = written.until.saturating_sub(wall).min(lease_secs.into()) as u32;
            let until_secs = match left {
                0 => 0,
                left => now_secs.saturating_add(left),
            };
            let id = Some(id).filter(|id| !id.is_empty());
            let client = Client { vif: written.vif, mac, id };
            let hold = if written.declined { Hold::Declined } else { Hold::Bound };
            leases.put(written.address, Lease { client, hold, until_secs }, now_secs);
        }
        Ok(leases)
    }

    /// Saves leases; what is only offered is nobody's yet.
    ///
    /// # Errors
    /// Of writing. What was saved before stays.
    pub fn save(&mut self, leases: &Leases, now_secs: u32) -> io::Result<()> {
        let wall = wall_secs();
        let written = |(address, lease): (Ipv4Addr, &Lease)| Written {
            address,
            vif: lease.client.vif.clone(),
            mac: lease.client.mac.to_string(),
            client_id: lease.client.id.as_deref().map(digits_of).unwrap_or_default(),
            declined: lease.hold == Hold::Declined,
            until: match lease.holds(now_secs) {
                true => wall + u64::from(lease.until_secs - now_secs),
                false => wall.saturating_sub(u64::from(now_secs - lease.until_secs)),
            },
        };
        let kept = leases.iter().filter(|(_, lease)| lease.hold != Hold::Offered);
        let text = serde_json::to_vec(&kept.map(written).collect::<Vec<_>>())?;
        if text.len() > LEASES_BYTES_MAX {
            return Err(io::Error::other("there are too many leases to be saved"));
        }
        let number = self.number + 1;
        let mut place = Vec::with_capacity(HEADER_LEN + text.len());
        place.extend(MAGIC);
        place.extend(number.to_le_bytes());
        place.extend((text.len() as u64).to_le_bytes());
        place.extend(sum_of(number, &text).to_le_bytes());
        place.extend(text);
        self.file.seek(SeekFrom::Start(number % 2 * PLACE_LEN))?;
        self.file.write_all(&place)?;
        self.number = number;
        Ok(())
    }

    /// What is in a place, if it is whole.
    fn read(&mut self, place: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        self.file.seek(SeekFrom::Start(place * PLACE_LEN))?;
        let mut bytes = Vec::new();
        (&self.file).take(PLACE_LEN).read_to_end(&mut bytes)?;
        let field = |at: usize| {
            let field = bytes.get(at..)?.first_chunk().copied();
            field.map(u64::from_le_bytes)
        };
        let (Some(number), Some(len), Some(sum)) = (field(8), field(16), field(24)) else {
            return Ok(None);
        };
        let end = usize::try_from(len).ok().and_then(|len| len.checked_add(HEADER_LEN));
        let text = end.and_then(|end| bytes.get(HEADER_LEN..end));
        let whole = text.filter(|text| bytes.starts_with(&MAGIC) && sum_of(number, text) == sum);
        Ok(whole.map(|text| (number, text.to_vec())))
    }
}

/// FNV-1a: the file is weir's own, and who writes it on purpose writes the sum, too.
fn sum_of(number: u64, text: &[u8]) -> u64 {
    let bytes = number.to_le_bytes().into_iter().chain(text.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn wall_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}
