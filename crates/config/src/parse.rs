//! TOML to [`Config`], collecting every problem.
//!
//! The text is parsed to a tree with places, and the tree is read key by key (`section`). A bad value is reported
//! and replaced by its default, so that reading continues; nobody uses the values of a text with problems. Checks
//! across ports come last.

use std::collections::BTreeMap;
use std::rc::Rc;

use weir_limits as limits;
use weir_text::count;

use super::check::{Shown, TableFault, Whole};
use super::error::Problem;
use super::group;
use super::keys::{Key, Value};
use super::overlay::{self, Networks};
use super::section::{Places, Section, document, missing};
use super::switch;
use super::template::{self, Copied, OnDemandConfig, Templates, templates};
use super::values::{Execution, LatencyBudget, PlacementMode, PortName, SocketPath, UserName};
use super::{
    Behind, Config, Defaults, Groups, PlacementConfig, SwitchConfig, UplinkConfig, UplinkKind,
    VifConfig, XenConfig,
};

/// A port with its places in the text.
struct Placed<T> {
    port: T,
    places: Places,
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
    let (switch, switch_places) = switch_table(switch, defaults, has_xen, &mut problems);
    let overlay = overlay::overlay(root.subtable("overlay", &mut problems), &mut problems);
    let networks = root.subtables("network", &mut problems);
    let networks = overlay::networks(networks, overlay, &mut problems);
    let group_ids = root.take(group::GroupIds::TABLE, &mut problems);
    let groups = root.subtables("group", &mut problems);
    let groups = group::groups(groups, group_ids, &mut problems);
    let (templates, places) = templates(root.subtables("template", &mut problems), &mut problems);
    let patterns = root.subtables(OnDemandConfig::TABLES, &mut problems);
    let (on_demand, pattern_places) = template::on_demand(patterns, &mut problems);
    let templates = Templates { on_demand, ..templates };
    let uplinks: Vec<_> = root
        .subtables("uplink", &mut problems)
        .into_iter()
        .filter_map(|section| uplink(section, &mut problems))
        .collect();
    let bonds = root.subtables("bond", &mut problems);
    let bonds = bonds.into_iter().filter_map(|section| bond(section, &mut problems));
    let uplinks: Vec<_> = uplinks.into_iter().chain(bonds).collect();
    let mut copied = Copied::default();
    let sections = root.subtables("vif", &mut problems);
    // A list that grows would take up to three times the memory.
    let mut vifs = Vec::with_capacity(sections.len());
    vifs.extend(sections.into_iter().filter_map(|section| {
        vif(section, &switch.control, Some((&templates, &mut copied)), &mut problems)
    }));
    copied.report(&mut problems);
    for placed in &mut vifs {
        let template = places.iter().find(|(name, _)| placed.port.template.as_ref() == Some(name));
        placed.places.template = template.map(|(_, places)| Rc::clone(places));
    }
    let own = root.subtables("xen-vif", &mut problems);
    let xen = root.subtable("xen", &mut problems);
    let xen = XenConfig::from_sections(xen, own, &mut problems);
    root.finish(&mut problems);

    for placed in &mut vifs {
        networks.settle(&mut placed.port);
    }
    if !too_many(&networks, &uplinks, &vifs, &mut problems) {
        let whole = Whole {
            control: &switch.control,
            keeper: switch.keeper.as_ref(),
            latency_budget: switch.latency_budget,
            schedule: switch.schedule,
            groups: &groups,
            templates: &templates,
            networks: &networks,
            uplinks: uplinks.iter().map(|placed| &placed.port).collect(),
            vifs: vifs.iter().map(|placed| &placed.port).collect(),
            xen: xen.as_ref().map(|(xen, _)| xen),
        };
        let places = uplinks.iter().map(|placed| &placed.places);
        let places = places.chain(vifs.iter().map(|placed| &placed.places));
        let places = places.chain(&switch_places).chain(&pattern_places);
        let places = places.chain(xen.iter().flat_map(|(_, places)| places));
        report(&whole.faults(), &places.collect::<Vec<_>>(), &mut problems);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Config {
        switch,
        networks,
        groups,
        templates,
        uplinks: uplinks.into_iter().map(|placed| placed.port).collect(),
        vifs: vifs.into_iter().map(|placed| placed.port).collect(),
        xen: xen.map(|(xen, _)| xen),
    })
}

/// Reads the tables that can change while weir runs and belong to no port. Names in them, except those of groups, need
/// not exist.
///
/// # Errors
/// Every problem, in no order.
pub(super) fn common(text: &str) -> Result<(SwitchConfig, Groups, Templates), Vec<Problem>> {
    let mut problems = Vec::new();
    let document = document(text)?;
    let mut root = Section::new(String::new(), 0..0, document.get_ref());
    let mut switch = SwitchConfig::default();
    if let Some(mut section) = root.subtable("switch", &mut problems) {
        Value::read(&mut switch, &Key::TABLE, &mut section, &mut problems);
        section.finish(&mut problems);
    }
    let ids = root.take(group::GroupIds::TABLE, &mut problems);
    let groups = group::groups(root.subtables("group", &mut problems), ids, &mut problems);
    let (templates, _) = templates(root.subtables("template", &mut problems), &mut problems);
    let patterns = root.subtables(OnDemandConfig::TABLES, &mut problems);
    let (on_demand, _) = template::on_demand(patterns, &mut problems);
    root.finish(&mut problems);
    let templates = Templates { on_demand, ..templates };
    if problems.is_empty() { Ok((switch, groups, templates)) } else { Err(problems) }
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
    for Placed { port, places } in &vifs {
        // The switch's own budget and schedule are not known here, and are checked when the interface is added.
        let budget = port.latency_budget.unwrap_or(LatencyBudget::MAX);
        port.faults(budget, None).iter().for_each(|fault| places.report(fault, &mut problems));
    }
    match vifs.pop() {
        Some(placed) if problems.is_empty() => Ok(placed.port),
        _ => Err(problems),
    }
}

fn switch_table(
    section: Option<Section<'_>>,
    defaults: &Defaults,
    has_xen: bool,
    problems: &mut Vec<Problem>,
) -> (SwitchConfig, Option<Places>) {
    let mut switch = SwitchConfig::new(defaults.control.clone());
    let mut places = None;
    if let Some(mut section) = section {
        let control = switch.control.clone();
        Value::read(&mut switch, &Key::TABLE, &mut section, problems);
        if defaults.control_named {
            switch.control = control;
        }
        let is_root = |user: &UserName| ["root", "0"].contains(&user.as_str());
        if let (Some(_), Some(span)) =
            (switch.user.as_ref().filter(|user| is_root(user)), section.place("user"))
        {
            problems.push(section.does_not_fit(
                span,
                "weir serves guests as another user than root",
                "leave `user` out, or make one: useradd --system --no-create-home weir",
            ));
        }
        for key in ["realization", "workers"] {
            if switch.execution == Execution::Tasklet {
                break;
            }
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
        check_placement(&mut section, switch.placement, problems);
        if has_xen && section.has_good("user") {
            problems.push(
                Problem::new("`switch.user` means nothing with `[xen]`")
                    .label(section.place("user").unwrap_or_default(), "has no effect")
                    .help(
                        "with [xen], weir stays root without capabilities, because Xen's devices belong to root",
                    ),
            );
        }
        switch::check(&mut section, problems);
        places = Some(section.places());
        section.finish(problems);
    }
    if let Some(keeper) = &defaults.keeper {
        switch.keeper = Some(keeper.clone());
    }
    (switch, places)
}

fn check_placement(
    section: &mut Section<'_>,
    placement: PlacementConfig,
    problems: &mut Vec<Problem>,
) {
    let is_off = placement.mode == PlacementMode::Off;
    let bad_mode = section.has("placement") && !section.has_good("placement");
    if placement.pin_vcpus && is_off && !bad_mode {
        problems.push(
            Problem::new("`switch.pin_vcpus` does nothing without `placement`")
                .label(
                    section.place("pin_vcpus").unwrap_or_default(),
                    "nobody places virtual processors",
                )
                .help("add `placement = \"dynamic\"` or `placement = \"static\"`"),
        );
    }
}

fn uplink(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Option<Placed<UplinkConfig>> {
    let name = port_name(&section, "uplink.", problems);
    if !section.has("kind") {
        problems.push(missing(&section, "kind", "add `kind = \"tap\"`"));
    }
    let kind: Option<UplinkKind> = section.value("kind", &mut Vec::new());
    let has_interface = kind.is_none_or(|kind| kind.behind() != Behind::Socket);
    if has_interface && !section.has("name") {
        problems.push(missing(&section, "name", "name the interface, such as `name = \"weir0\"`"));
    }
    if kind == Some(UplinkKind::Bond)
        && let Some(span) = section.refuse("kind")
    {
        problems.push(
            Problem::new(format!("`{}` is a bond", section.title))
                .label(span, "no interface of the host")
                .help("a bond is a table of its own: write the header [bond.NAME]"),
        );
    }
    let mut port = UplinkConfig::template();
    port.read_keys(&mut section, UplinkConfig::keys_of(UplinkKind::default()), problems);
    let (places, named) = (section.places(), !has_interface || section.has_good("name"));
    section.finish(problems);
    port.name = named.then_some(name)??;
    Some(Placed { port, places })
}

/// Reads a table `[bond.NAME]`. The keys of devices are those of its uplinks.
fn bond(mut section: Section<'_>, problems: &mut Vec<Problem>) -> Option<Placed<UplinkConfig>> {
    let name = port_name(&section, "bond.", problems);
    let mut port = UplinkConfig { kind: UplinkKind::Bond, ..UplinkConfig::template() };
    port.read_keys(&mut section, UplinkConfig::keys_of(port.kind), problems);
    let places = section.places();
    let named = !section.has("uplinks") || section.has_good("uplinks");
    section.finish(problems);
    port.name = named.then_some(name)??;
    Some(Placed { port, places })
}

/// Reads a table `[vif.NAME]`. Outside of a file the templates are not known, and `template` is a name only.
fn vif(
    mut section: Section<'_>,
    control: &SocketPath,
    templates: Option<(&Templates, &mut Copied)>,
    problems: &mut Vec<Problem>,
) -> Option<Placed<VifConfig>> {
    let name = port_name(&section, "vif.", problems);
    let socket = vif_socket(&mut section, name.as_ref(), control, problems);
    let in_file = templates.is_some();
    let template = section.value("template", &mut Vec::new());
    let template = templates.and_then(|(all, copied)| {
        let template = all.get(&template?).ok()?;
        copied.fits(template).then_some(template)
    });
    let plain = VifConfig::template;
    let mut port = template.map_or_else(plain, |it| template::under(&it.vif, &mut section));
    port.read_keys(&mut section, |key| key.name != "socket", problems);
    if in_file && let Some(span) = section.refuse("by") {
        problems.push(
            Problem::new(format!("`{}` has `by`", section.title))
                .label(span, "says who keeps an interface that no file names")
                .help(
                    "leave it out, or let the owner add the interface: `weir vif add NAME by=...`",
                ),
        );
    }
    let places = section.places();
    section.finish(problems);
    (port.name, port.socket) = (name?, socket?);
    Some(Placed { port, places })
}

/// The configured socket, or `NAME.sock` beside the control socket.
fn vif_socket(
    section: &mut Section<'_>,
    name: Option<&PortName>,
    control: &SocketPath,
    problems: &mut Vec<Problem>,
) -> Option<SocketPath> {
    if section.has("socket") {
        return section.value("socket", problems);
    }
    let header = section.span.clone();
    match Defaults::vif_socket(control, name?) {
        Ok(socket) => Some(socket),
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

/// Reports the faults of the checks, each at its place.
fn report(faults: &[TableFault], places: &[&Places], problems: &mut Vec<Problem>) {
    let places: BTreeMap<_, _> =
        places.iter().map(|places| (places.title.as_str(), *places)).collect();
    for TableFault { table, fault, shown } in faults {
        let here = places.get(table.as_str());
        if here.is_some_and(|places| places.is_bad(fault)) {
            continue;
        }
        match (shown, here) {
            (None, Some(here)) => here.report(fault, problems),
            (None, None) => problems.push(Problem::new(&fault.reason).help(&fault.help)),
            (Some(Shown { message, labels, help }), _) => {
                let label =
                    |problem: Problem, (table, key, words): &(String, &str, String)| match places
                        .get(table.as_str())
                    {
                        Some(places) => problem.label(places.of(key), words),
                        None => problem,
                    };
                let problem = labels.iter().fold(Problem::new(message), label);
                problems.push(problem.help(help));
            }
        }
    }
}

/// Reports too many ports. True if there are too many.
fn too_many(
    networks: &Networks,
    uplinks: &[Placed<UplinkConfig>],
    vifs: &[Placed<VifConfig>],
    problems: &mut Vec<Problem>,
) -> bool {
    let ports = uplinks.len() + vifs.len();
    let mut headers: Vec<_> = uplinks.iter().map(|it| it.places.header.clone()).collect();
    headers.extend(vifs.iter().map(|it| it.places.header.clone()));
    headers.sort_by_key(|header| header.start);
    let one_more = headers.get(limits::PORTS_MAX - networks.own_ports());
    if let Some(header) = one_more {
        problems.push(
            Problem::new(format!("{} are too many", count(ports, "port")))
                .label(header.clone(), format!("one more than {}", limits::PORTS_MAX))
                .help("run a second weir for the rest and join them with an uplink"),
        );
    }
    one_more.is_some()
}
