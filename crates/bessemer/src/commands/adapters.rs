//! Adapters beside a base that is in memory once: of a run, or of a directory of PEFT.

use crate::cli::RunArgs;
use crate::commands::saved_model::{SavedModel, is_parameter};
use crate::console::Console;
use crate::failure::Failure;
use crate::run_dir::RunDir;
use bessemer_arch::{Model, ParamId};
use bessemer_checkpoint::base_hash;
use bessemer_checkpoint::hf::HfImport;
use bessemer_runtime::Decoder;
use bessemer_tensor::Backend;
use bessemer_tensor::host::HostTensor;
use bessemer_train::{RunIdentity, TrainState};
use bessemer_units::{Bytes, DType};
use std::path::Path;

/// File by which a directory of PEFT is recognised.
const PEFT: &str = "adapter_config.json";

/// A model that has the parameters of a base except for some of its own.
#[derive(Debug)]
pub(crate) struct Adapted {
    model: Model,
    /// Adapters, and parameters that were trained besides them.
    own: Vec<HostTensor>,
}

/// Hash of the base of a saved model without adapters.
pub(crate) fn hash_of(base: &SavedModel) -> Result<String, Failure> {
    base_hash(base.model(), &mut base.checkpoint.tensors(is_parameter))
        .map_err(|e| Failure::new(e.to_string()))
}

/// Refuses adapters of another base. `found`: the hash of their base that they record, `base`: that of the base in use.
pub(crate) fn check_hash(
    adapters: &Path,
    found: Option<&str>,
    unchecked: bool,
    base: &str,
) -> Result<(), Failure> {
    match found {
        Some(found) if found != base => Err(Failure::new(format!(
            "{}: wanted adapters of this base, whose tensors have the hash {base}, found those of {found}; take the base that they were \
             trained on",
            adapters.display()
        ))),
        None if !unchecked => Err(Failure::new(format!(
            "{}: wanted base_blake3 in the metadata of adapter_model.safetensors, the hash of the base's tensors, found none: the files name \
             their base only. If it is this one, add --unchecked-base",
            adapters.display()
        ))),
        _ => Ok(()),
    }
}

impl Adapted {
    /// Reads and checks the adapters of a run or of a directory of PEFT.
    ///
    /// # Errors
    /// Adapters of another base, or that the base cannot have; tensors that are missing, of another shape or not finite.
    pub(crate) fn read(
        place: &Path,
        base: &SavedModel,
        unchecked: bool,
        console: &mut Console,
    ) -> Result<Adapted, Failure> {
        if base.model().adapters.is_some() {
            return Err(Failure::usage(format!(
                "--adapter {}: wanted a base without adapters, found a run that has some itself; take its own base",
                place.display()
            )));
        }
        let adapted = match RunDir::new(place).has(PEFT) {
            true => Adapted::of_peft(place, base, unchecked, console)?,
            false => Adapted::of_run(place, base, console)?,
        };
        for tensor in &adapted.own {
            if let Some(at) = tensor.values.iter().position(|value| !value.is_finite()) {
                return Err(Failure::new(format!(
                    "{}: {}: element {at} is {}, wanted a number",
                    place.display(),
                    tensor.name,
                    tensor.values[at]
                )));
            }
        }
        Ok(adapted)
    }

    fn of_peft(
        place: &Path,
        base: &SavedModel,
        unchecked: bool,
        console: &mut Console,
    ) -> Result<Adapted, Failure> {
        let import = HfImport::adapters_of(base.model(), place)?;
        check_hash(place, import.base_hash(), unchecked, &hash_of(base)?)?;
        for note in import.notes() {
            console.say(&format!("note: {}: {note}", place.display()));
        }
        let model = import.model().clone();
        let params = model.params().into_iter().filter(|spec| spec.id.role().is_adapter());
        let own = params.map(|spec| import.read_tensor(&spec.name)).collect::<Result<_, _>>()?;
        Ok(Adapted { model, own })
    }

    fn of_run(place: &Path, base: &SavedModel, console: &mut Console) -> Result<Adapted, Failure> {
        let run = SavedModel::open(&RunArgs { run: place.into(), step: None }, console)?;
        let wrong = |problem: String| Failure::new(format!("{}: {problem}", place.display()));
        let TrainState { identity, base: begun_with, .. } = &run.state;
        if identity.model.adapters.is_none() {
            return Err(wrong(
                "wanted a run with [model.adapters], or a directory with adapter_config.json, found a model without adapters".into(),
            ));
        }
        let plain =
            RunIdentity { model: Model { adapters: None, ..identity.model.clone() }, ..identity.clone() };
        if let Some(difference) = base.state.identity.difference(&plain) {
            return Err(wrong(format!(
                "wanted adapters of a base with the {} {}, found {}",
                difference.what, difference.wanted, difference.found
            )));
        }
        run.require_parameters()?;
        base.require_parameters()?;
        let (mut own, mut differs) = (Vec::new(), None);
        for spec in identity.model.params() {
            let tensor = run.checkpoint.read_tensor(&spec.name)?;
            if ParamId::parse(&spec.name).is_some_and(|id| id.role().is_adapter()) {
                own.push(tensor);
                continue;
            }
            let of_base = base.checkpoint.read_tensor(&spec.name)?;
            let pairs = tensor.values.iter().zip(&of_base.values);
            let other = pairs.clone().position(|(found, wanted)| found.to_bits() != wanted.to_bits());
            if let Some(at) = other {
                let text = format!("{}, element {at}: wanted {}", spec.name, of_base.values[at]);
                differs.get_or_insert_with(|| format!("{text}, found {}", tensor.values[at]));
                own.push(tensor);
            }
        }
        // Parameters that train.trained names differ from those of the base that the run began with.
        if let Some(differs) = differs
            && begun_with.as_deref() != Some(&*hash_of(base)?)
        {
            return Err(wrong(format!(
                "wanted adapters of this base; the run's base differs in {differs}. Take the base that the run began with (train.init.from)"
            )));
        }
        Ok(Adapted { model: identity.model.clone(), own })
    }

    /// Memory of its own parameters.
    pub(crate) fn bytes(&self) -> Bytes {
        let elements = self.own.iter().map(|tensor| tensor.values.len() as u64);
        Bytes(elements.sum::<u64>() * DType::F32.size() as u64)
    }

    /// A decoder on the parameters of the base's.
    pub(crate) fn decoder(&self, backend: &mut dyn Backend, base: &Decoder) -> Result<Decoder, Failure> {
        let own = |name: &str| self.own.iter().any(|tensor| tensor.name == name);
        let decoder = base.adapted(backend, &self.model, &own)?;
        for tensor in &self.own {
            decoder.write_param(backend, &tensor.name, &tensor.values)?;
        }
        Ok(decoder)
    }
}
