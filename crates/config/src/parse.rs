//! TOML to [`Config`], collecting every problem.
//!
//! The text is parsed to a tree with places, and the tree is read key by key (`section`). A bad value is reported
//! and replaced by its default, so that reading continues; nobody uses the values of a text with problems. Checks
//! across ports come last.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::DeTable;
use weir_limits as limits;
use weir_text::count;

use super::api::ApiConfig;
use super::cost;
use super::error::Problem;
use super::group;
use super::mirror::check_mirrors;
use super::overlay::{self, Networks, Said};
use super::section::{Located, Section};
use super::settings::NONE;
use super::values::{
    Execution, LatencyBudget, MirroredPorts, NetworkName, PlacementMode, PortName, Schedule,
    SocketPath, TrunkVids, Vid, VlanMode,
};
use super::{Config, Defaults, PlacementConfig, SwitchConfig, UplinkConfig, VifConfig, XenConfig};

/// A port with the places that the checks across ports point at.
struct Placed<T> {
    port: T,
    header: Range<usize>,
    /// Where the socket or the interface is named; the header if it is a default.
    resource: Range<usize>,
    mac: Option<Range<usize>>,
    agent: Option<Range<usize>>,
    said: Said,
}

/// Reads a whole configuration.
///
/// # Errors
/// Every problem, in no order.
pub(super) fn config(text: &str, defaults: &Defaults) -> Result<Config, Vec<Problem>> {
    let mut problems = Vec::new();
    let document = document(text)?;
    let mut root = Section::new(String::new(), 0..0, document.get_ref());

    let has_xen = root.has("xen");
    let switch = root.subtable("switch", &mut problems);
    let (switch, keeper) = switch_table(switch, defaults, has_xen, &mut problems);
    let overlay = overlay::overlay(root.subtable("overlay", &mut problems), &mut problems);
    let networks = root.subtables("network", &mut problems);
    let networks = overlay::networks(networks, overlay, &mut problems);
    let groups = group::groups(root.subtables("group", &mut problems), &mut problems);
    let uplinks: Vec<_> = root
        .subtables("uplink", &mut problems)
        .into_iter()
        .filter_map(|section| uplink(section, switch.schedule, &mut problems))
        .collect();
    let mut vifs: Vec<_> = root
        .subtables("vif", &mut problems)
        .into_iter()
        .filter_map(|section| vif(section, &switch.control, Some(&switch), &mut problems))
        .collect();
    let mut xen = root.subtable("xen", &mut problems);
    let xen_said = xen.as_mut().map(Said::by);
    let xen_header = xen.as_ref().map(|section| section.span.clone());
    let xen = xen.map(|section| XenConfig::from_section(section, &switch, &mut problems));
    root.finish(&mut problems);

    // With more ports than there may be, only that is said: ports are compared with each other.
    if !too_many(&uplinks, &vifs, &mut problems) {
        check_across(&switch, &uplinks, &vifs, &mut problems);
        check_networks(&networks, &uplinks, &mut vifs, &mut problems);
        check_keeper(&switch, keeper, &vifs, &mut problems);
    }
    let in_groups = vifs.iter().map(|placed| (&placed.port.groups, placed.header.clone()));
    let xen_groups = xen.as_ref().map(|xen| &xen.vif.groups).zip(xen_header);
    for (of, header) in in_groups.chain(xen_groups) {
        if let Err(error) = groups.check(of) {
            problems.push(
                Problem::new(error.to_string())
                    .label(header, "is in that group")
                    .help(error.help()),
            );
        }
    }
    if let (Some(xen), Some(said)) = (&xen, xen_said)
        && let Err(error) = networks.settle(&mut xen.vif.clone())
    {
        overlay::report("xen", &error, &said, &mut problems);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Config {
        switch,
        networks,
        groups,
        uplinks: uplinks.into_iter().map(|placed| placed.port).collect(),
        vifs: vifs.into_iter().map(|placed| placed.port).collect(),
        xen,
    })
}

/// Reads one `[vif.NAME]` table and nothing else, with default sockets beside `control`.
///
/// # Errors
/// Every problem, in no order.
pub(super) fn single_vif(text: &str, control: &SocketPath) -> Result<VifConfig, Vec<Problem>> {
    let mut problems = Vec::new();
    let document = document(text)?;
    let mut root = Section::new(String::new(), 0..0, document.get_ref());
    let mut vifs: Vec<_> = root
        .subtables("vif", &mut problems)
        .into_iter()
        .filter_map(|section| vif(section, control, None, &mut problems))
        .collect();
    root.finish(&mut problems);
    match vifs.pop() {
        Some(placed) if problems.is_empty() => Ok(placed.port),
        _ => Err(problems),
    }
}

/// The text as a tree.
///
/// # Errors
/// It asks for too much, or every place where a short text is not TOML, or the first one of a long text: the parser keeps
/// as many mistakes as there are.
pub(super) fn document(text: &str) -> Result<toml::Spanned<DeTable<'_>>, Vec<Problem>> {
    cost::check(text).map_err(|problem| vec![problem])?;
    let errors = match text.len() <= limits::CONFIG_MISTAKES_LEN_MAX {
        true => match DeTable::parse_recoverable(text) {
            (document, errors) if errors.is_empty() => return Ok(document),
            (_, errors) => errors,
        },
        false => match DeTable::parse(text) {
            Ok(document) => return Ok(document),
            Err(error) => vec![error],
        },
    };
    let problem = |error: &toml::de::Error| {
        let words = error.message().lines().next().unwrap_or_default().to_owned();
        Problem::new("not valid TOML").label(error.span().unwrap_or(0..0), words)
    };
    Err(errors.iter().take(limits::CONFIG_PROBLEMS_MAX).map(problem).collect())
}

fn switch_table(
    section: Option<Section<'_>>,
    defaults: &Defaults,
    has_xen: bool,
    problems: &mut Vec<Problem>,
) -> (SwitchConfig, Option<Range<usize>>) {
    let mut switch = SwitchConfig::new(defaults.control.clone());
    let mut keeper_at = None;
    if let Some(mut section) = section {
        switch.execution = section.take_or("execution", switch.execution, problems);
        if switch.execution == Execution::Tasklet {
            switch.realization = section.take_or("realization", switch.realization, problems);
            switch.workers = section.take_or("workers", switch.workers, problems);
        } else {
            for key in ["realization", "workers"] {
                if let Some(span) = section.refuse(key) {
                    let execution = switch.execution;
                    let what = format!("`{key}` means nothing to execution \"{execution}\"");
                    problems.push(
                        Problem::new(what)
                            .label(span, "has no effect")
                            .help("each pair of queues has one thread, which sleeps without work"),
                    );
                }
            }
        }
        switch.latency_budget = section.take_or("latency_budget", switch.latency_budget, problems);
        switch.schedule = section.take_or("schedule", switch.schedule, problems);
        switch.fdb_entries = section.take_or("fdb_entries", switch.fdb_entries, problems);
        let control = section.take_or("control", switch.control.clone(), problems);
        if !defaults.control_named {
            switch.control = control;
        }
        if let Some(Located { value, span }) = section.take("keeper", problems) {
            (switch.keeper, keeper_at) = (Some(value), Some(span));
        }
        switch.allow_symlinks = section.take_or("allow_symlinks", false, problems);
        switch.placement = placement(&mut section, problems);
        if let Some(Located { value, span }) = section.take("user", problems) {
            if has_xen {
                problems.push(
                    Problem::new("`switch.user` means nothing with `[xen]`")
                        .label(span, "has no effect")
                        .help(
                            "with [xen], weir stays root without capabilities, because Xen's devices belong to root",
                        ),
                );
            }
            switch.user = Some(value);
        }
        switch.api = ApiConfig::read(&mut section, problems);
        section.finish(problems);
    }
    if let Some(keeper) = &defaults.keeper {
        (switch.keeper, keeper_at) = (Some(keeper.clone()), None);
    }
    (switch, keeper_at)
}

fn placement(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> PlacementConfig {
    let mode = section.value::<PlacementMode>("placement", problems);
    let pin_vcpus = section.take::<bool>("pin_vcpus", problems);
    let bad_mode = mode.is_none() && section.has("placement");
    let mode = mode.unwrap_or_default();
    if let Some(Located { value: true, span }) = &pin_vcpus
        && mode == PlacementMode::Off
        && !bad_mode
    {
        problems.push(
            Problem::new("`switch.pin_vcpus` does nothing without `placement`")
                .label(span.clone(), "nobody places virtual processors")
                .help("add `placement = \"dynamic\"` or `placement = \"static\"`"),
        );
    }
    PlacementConfig { mode, pin_vcpus: pin_vcpus.is_some_and(|pin| pin.value) }
}

fn uplink(
    mut section: Section<'_>,
    schedule: Schedule,
    problems: &mut Vec<Problem>,
) -> Option<Placed<UplinkConfig>> {
    let name = port_name(&section, "uplink.", problems);
    if !section.has("kind") {
        problems.push(missing(&section, "kind", "add `kind = \"tap\"`"));
    }
    if !section.has("name") {
        problems.push(missing(&section, "name", "name the interface, such as `name = \"weir0\"`"));
    }
    let mut port = UplinkConfig::template();
    port.read_keys(&mut section, |_| true, problems);
    section.report(port.faults(schedule), problems);
    let (resource, named) = (section.place("name").unwrap_or_default(), section.has_good("name"));
    let (header, said) = (section.span.clone(), Said::by(&mut section));
    section.finish(problems);
    port.name = named.then_some(name)??;
    Some(Placed { port, header, resource, mac: None, agent: None, said })
}

fn vif(
    mut section: Section<'_>,
    control: &SocketPath,
    switch: Option<&SwitchConfig>,
    problems: &mut Vec<Problem>,
) -> Option<Placed<VifConfig>> {
    let name = port_name(&section, "vif.", problems);
    let socket = vif_socket(&mut section, name.as_ref(), control, problems);
    let mut port = VifConfig::template();
    port.read_keys(&mut section, |key| key.name != "socket", problems);
    if switch.is_some()
        && let Some(span) = section.refuse("by")
    {
        problems.push(
            Problem::new(format!("`{}` has `by`", section.title))
                .label(span, "says who keeps an interface that no file names")
                .help(
                    "leave it out, or let the owner add the interface: `weir vif add NAME by=...`",
                ),
        );
    }
    // The budget of a running switch is not known here, and is checked when the interface is added.
    let budget = switch.map_or(LatencyBudget::MAX, |switch| switch.latency_budget);
    let budget = port.latency_budget.unwrap_or(budget);
    section.report(port.faults(budget, switch.map(|switch| switch.schedule)), problems);
    let (mac, agent) = (section.place("mac"), section.place("agent"));
    let (header, said) = (section.span.clone(), Said::by(&mut section));
    section.finish(problems);
    let socket = socket?;
    (port.name, port.socket) = (name?, socket.value);
    Some(Placed { port, header, resource: socket.span, mac, agent, said })
}

/// The configured socket, or `NAME.sock` beside the control socket.
fn vif_socket(
    section: &mut Section<'_>,
    name: Option<&PortName>,
    control: &SocketPath,
    problems: &mut Vec<Problem>,
) -> Option<Located<SocketPath>> {
    let configured = section.take("socket", problems);
    if configured.is_some() || section.has("socket") {
        return configured;
    }
    let header = section.span.clone();
    match Defaults::vif_socket(control, name?) {
        Ok(socket) => Some(Located { value: socket, span: header }),
        Err(error) => {
            problems.push(
                Problem::new(format!("`{}` has no socket", section.title))
                    .label(header, format!("beside {control}: {error}"))
                    .help("add `socket = \"/run/weir/NAME.sock\"`"),
            );
            None
        }
    }
}

/// Reads `network`, `vlan`, `trunk` and `native`, which exclude or need each other.
pub(super) fn vlan(section: &mut Section<'_>, problems: &mut Vec<Problem>) -> VlanMode {
    let access = section.take::<Vid>("vlan", problems);
    let trunk = section.take::<TrunkVids>("trunk", problems);
    let native = section.take::<Vid>("native", problems);
    let network = section.take::<NetworkName>("network", problems);
    if let Some(mirror) = section.take::<MirroredPorts>("mirror", problems) {
        let others = ["vlan", "trunk", "native", "network"];
        if let Some(other) = others.into_iter().find_map(|key| section.place(key)) {
            problems.push(
                Problem::new(format!("`{}` has `mirror` and takes part", section.title))
                    .label(mirror.span.clone(), "gets copies only")
                    .label(other, "takes part in the switch")
                    .help("keep one: a mirror gets copies and nothing else, and may send nothing"),
            );
        }
        for (key, _) in VifConfig::template().rows() {
            let key = match key.of_copies {
                true => continue,
                false => key.name,
            };
            // A setting that is taken back may come with `mirror`.
            if !section.has(key) || section.is_word(key, NONE) {
                continue;
            }
            if let Some(span) = section.refuse(key) {
                problems.push(
                    Problem::new(format!("`{}` has `mirror` and `{key}`", section.title))
                        .label(mirror.span.clone(), "gets copies only")
                        .label(span, "does not hold for copies")
                        .help("keep one: a mirror gets copies of all frames, of any length"),
                );
            }
        }
        return VlanMode::Mirror(mirror.value);
    }
    if let Some(network) = &network
        && let Some(other) = ["vlan", "trunk"].into_iter().find_map(|key| section.place(key))
    {
        problems.push(
            Problem::new(format!("`{}` has both `network` and a VLAN", section.title))
                .label(network.span.clone(), "puts it into a network")
                .label(other, "puts it elsewhere")
                .help("keep one; a network can be a VLAN: `vlan` of its table"),
        );
    }
    if let (Some(access), Some(trunk)) = (&access, &trunk) {
        problems.push(
            Problem::new(format!("`{}` has both `vlan` and `trunk`", section.title))
                .label(access.span.clone(), "makes it an access port")
                .label(trunk.span.clone(), "makes it a trunk")
                .help("keep one; the VLAN of a trunk's untagged frames is `native`"),
        );
    }
    if let Some(native) = &native
        && !section.has("trunk")
    {
        problems.push(
            Problem::new(format!("`{}` has `native` without `trunk`", section.title))
                .label(native.span.clone(), "belongs to a trunk")
                .help("add `trunk`, or use `vlan` for an access port"),
        );
    }
    if let Some(network) = network {
        return VlanMode::Network(network.value);
    }
    match (access, trunk) {
        (Some(access), _) => VlanMode::Access(access.value),
        (None, Some(trunk)) => {
            VlanMode::Trunk { allowed: trunk.value, native: native.map(|native| native.value) }
        }
        (None, None) => VlanMode::Unset,
    }
}

fn port_name(section: &Section<'_>, prefix: &str, problems: &mut Vec<Problem>) -> Option<PortName> {
    let name = section.title.strip_prefix(prefix).unwrap_or(&section.title);
    match name.parse::<PortName>() {
        Ok(name) => Some(name),
        Err(error) => {
            let mut problem = Problem::new("bad name of a port");
            problem.help = error.help();
            problems.push(problem.label(section.span.clone(), error.to_string()));
            None
        }
    }
}

pub(super) fn missing(section: &Section<'_>, key: &str, help: &str) -> Problem {
    Problem::new(format!("`{}` has no `{key}`", section.title))
        .label(section.span.clone(), format!("needs `{key}`"))
        .help(help)
}

/// What must differ from port to port.
fn check_across(
    switch: &SwitchConfig,
    uplinks: &[Placed<UplinkConfig>],
    vifs: &[Placed<VifConfig>],
    problems: &mut Vec<Problem>,
) {
    let names = uplinks
        .iter()
        .map(|placed| (placed.port.name.to_string(), placed.header.clone()))
        .chain(vifs.iter().map(|placed| (placed.port.name.to_string(), placed.header.clone())));
    report_repeated("port name", names, problems);

    let ports = uplinks.iter().map(|it| (&it.port.name, &it.port.vlan, &it.header));
    let ports: Vec<_> =
        ports.chain(vifs.iter().map(|it| (&it.port.name, &it.port.vlan, &it.header))).collect();
    let pairs: Vec<_> = ports.iter().map(|(name, vlan, _)| (*name, *vlan)).collect();
    if let Err(error) = check_mirrors(&pairs) {
        let header = ports.iter().find(|(name, ..)| *name == error.port());
        let header = header.map_or(0..0, |(.., header)| (*header).clone());
        problems.push(
            Problem::new(error.to_string())
                .label(header, "has `mirror`")
                .help("have it mirror ports that are no mirrors"),
        );
    }

    let sockets =
        vifs.iter().map(|placed| (placed.port.socket.to_string(), placed.resource.clone()));
    report_repeated("socket", sockets, problems);

    // In another network it is another station's.
    let mac = |placed: &Placed<VifConfig>| {
        let mac = placed.port.mac?;
        let text = match placed.port.vlan.network() {
            Some(network) => format!("{mac} of network {network}"),
            None => mac.to_string(),
        };
        Some((text, placed.mac.clone()?))
    };
    report_repeated("MAC address", vifs.iter().filter_map(mac), problems);

    let interfaces =
        uplinks.iter().map(|placed| (placed.port.interface.to_string(), placed.resource.clone()));
    report_repeated("interface", interfaces, problems);

    for placed in vifs.iter().filter(|placed| placed.port.socket == switch.control) {
        problems.push(
            Problem::new(format!("`vif.{}` uses the control socket", placed.port.name))
                .label(placed.resource.clone(), format!("{} is weir's own", switch.control))
                .help("give the interface another `socket`, or the switch another `control`"),
        );
    }

    // Interfaces of one virtual machine share an agent; with anything else it shares no socket.
    for placed in vifs {
        let (Some(agent), Some(span)) = (&placed.port.agent, &placed.agent) else {
            continue;
        };
        let owner = if *agent == switch.control {
            Some("weir's own control socket".into())
        } else {
            let vif = vifs.iter().find(|vif| vif.port.socket == *agent);
            vif.map(|vif| format!("the socket of `vif.{}`", vif.port.name))
        };
        if let Some(owner) = owner {
            problems.push(
                Problem::new(format!("`vif.{}` has no socket for its agent", placed.port.name))
                    .label(span.clone(), format!("{agent} is {owner}"))
                    .help("give the agent another path, such as \"/run/weir/NAME.agent\""),
            );
        }
    }
}

/// Puts interfaces into their networks, which are to be there and to have room for their packets.
fn check_networks(
    networks: &Networks,
    uplinks: &[Placed<UplinkConfig>],
    vifs: &mut [Placed<VifConfig>],
    problems: &mut Vec<Problem>,
) {
    for Placed { port, header, said, .. } in vifs {
        if let Err(error) = networks.settle(port) {
            overlay::report(&format!("vif.{}", port.name), &error, said, problems);
        }
        overlay::check_name(networks, &port.name, header, problems);
    }
    for Placed { port, header, said, .. } in uplinks {
        if let Err(error) = networks.check_uplink(port) {
            overlay::report(&format!("uplink.{}", port.name), &error, said, problems);
        }
        overlay::check_name(networks, &port.name, header, problems);
    }
}

/// The keeper is another process, whose socket is nobody else's.
fn check_keeper(
    switch: &SwitchConfig,
    at: Option<Range<usize>>,
    vifs: &[Placed<VifConfig>],
    problems: &mut Vec<Problem>,
) {
    let (Some(keeper), Some(at)) = (&switch.keeper, at) else { return };
    let owner = if *keeper == switch.control {
        Some("weir's own control socket".to_owned())
    } else {
        let uses = |vif: &VifConfig| vif.socket == *keeper || vif.agent.as_ref() == Some(keeper);
        let vif = vifs.iter().find(|placed| uses(&placed.port));
        vif.map(|vif| format!("a socket of `vif.{}`", vif.port.name))
    };
    if let Some(owner) = owner {
        problems.push(
            Problem::new("`switch.keeper` is no socket of a keeper")
                .label(at, format!("{keeper} is {owner}"))
                .help("name the socket that weir-keeper listens on, such as \"/run/weir/keeper.sock\""),
        );
    }
}

/// Whether there are more ports than there may be, which is then reported.
fn too_many(
    uplinks: &[Placed<UplinkConfig>],
    vifs: &[Placed<VifConfig>],
    problems: &mut Vec<Problem>,
) -> bool {
    let ports = uplinks.len() + vifs.len();
    let mut headers: Vec<_> = uplinks.iter().map(|placed| placed.header.clone()).collect();
    headers.extend(vifs.iter().map(|placed| placed.header.clone()));
    headers.sort_by_key(|header| header.start);
    let one_more = headers.get(limits::PORTS_MAX);
    if let Some(header) = one_more {
        problems.push(
            Problem::new(format!("{} are too many", count(ports, "port")))
                .label(header.clone(), format!("one more than {}", limits::PORTS_MAX))
                .help("run a second weir for the rest and join them with an uplink"),
        );
    }
    one_more.is_some()
}

/// Reports every value that stands in more than one place.
pub(super) fn report_repeated(
    what: &str,
    values: impl Iterator<Item = (String, Range<usize>)>,
    problems: &mut Vec<Problem>,
) {
    let mut places: BTreeMap<String, Vec<Range<usize>>> = BTreeMap::new();
    for (value, span) in values {
        places.entry(value).or_default().push(span);
    }
    for (value, spans) in places {
        let [first, again @ ..] = spans.as_slice() else {
            continue;
        };
        if again.is_empty() {
            continue;
        }
        let problem = Problem::new(format!("the {what} {value} is used {} times", spans.len()))
            .label(first.clone(), "first used here");
        problems.push(
            again.iter().fold(problem, |problem, span| problem.label(span.clone(), "and here")),
        );
    }
}
