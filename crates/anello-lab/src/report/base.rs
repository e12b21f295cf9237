//! Contenders that name one which differs from them in nothing but what they are named for, their base: what the tables of
//! all reports are made of.
//!
//! Beside the reference a contender may differ in several things at once; beside its base it shows what the one is worth.

use crate::plan::cell::{Cell, Group, Workload};
use crate::result::measure::Measure;
use crate::result::{ContenderRecord, LabResult, PairComparison};

/// One contender beside its base.
#[derive(Debug)]
pub struct BaseRow<'a> {
    /// Index of the contender.
    pub index: usize,
    /// Its name.
    pub name: &'a str,
    /// The name of its base.
    pub base: &'a str,
    /// The comparisons of the two; at least one.
    pub versus: Vec<&'a PairComparison>,
}

impl<'a> BaseRow<'a> {
    /// The comparison in this cell, if both were measured there.
    pub fn in_cell(&self, cell: &Cell) -> Option<&'a PairComparison> {
        self.versus.iter().copied().find(|versus| versus.cell == *cell)
    }
}

/// What stands over these tables.
pub fn title(workload: Workload) -> String {
    format!("Each option against the {} that differs in nothing else", workload.server_noun())
}

/// Those that were compared with their base in some cell of the group, in the order of the contenders.
pub fn rows<'a>(result: &'a LabResult, group: &Group) -> Vec<BaseRow<'a>> {
    let row = |(index, record): (usize, &'a ContenderRecord)| {
        let (name, base) = (record.name.as_str(), record.base.as_deref()?);
        let of_both = |versus: &&PairComparison| versus.contender == name && versus.peer == base;
        let here = |versus: &&PairComparison| versus.cell.group() == *group;
        let versus: Vec<&PairComparison> = result.base_versus.iter().filter(of_both).filter(here).collect();
        (!versus.is_empty()).then_some(BaseRow { index, name, base, versus })
    };
    result.contenders.iter().enumerate().filter_map(row).collect()
}

/// By what they are compared in such a cell: by all of which pairs are made.
pub fn measures(cell: &Cell) -> impl Iterator<Item = Measure> + use<> {
    Measure::of_cell(cell).iter().copied().filter(|measure| *measure != Measure::P50)
}
