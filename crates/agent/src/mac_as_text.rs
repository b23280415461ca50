//! An address in a message or a file, as text: `52:54:00:12:34:56`.

use serde::{Deserialize, Deserializer, Serializer};
use weir_wire::Mac;

pub(crate) fn serialize<S: Serializer>(mac: &Mac, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(mac)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}
