//! The golden cases: made in float64 by an independent implementation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use selective_scan::naive::{decode, encode};
use selective_scan::{ElementType, Gradients, Inputs, Options, OutputGradients, Outputs, Problem, Spec};

use super::Case;

/// A golden case and what it must give, all in float64.
pub struct Golden {
    pub name: String,
    pub options: Options,
    inputs: Inputs<Tensor>,
    output_gradients: OutputGradients<Tensor>,
    pub outputs: Outputs<Vec<f64>>,
    pub gradients: Gradients<Vec<f64>>,
}

struct Tensor {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Golden {
    /// The case with its inputs rounded to an element type.
    pub fn case(&self, element: ElementType) -> Case {
        let specs =
            self.inputs.as_ref().map(|name, tensor| Spec { element: element.of(name), shape: &tensor.shape });
        let problem = Problem::scan(&specs, &self.options).unwrap();
        let rounded = |name: &str, tensor: &Tensor| encode(problem.element.of(name), &tensor.values);
        Case {
            name: format!("{} {element}", self.name),
            inputs: self.inputs.as_ref().map(rounded),
            output_gradients: self.output_gradients.as_ref().map(rounded),
            problem,
        }
    }
}

/// All golden cases of the file that EXPHIL_GOLDEN names, else of the repository's.
pub fn load() -> Vec<Golden> {
    let path = std::env::var_os("EXPHIL_GOLDEN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../test/data/golden.safetensors")),
        PathBuf::from,
    );
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let cases: BTreeMap<_, _> = metadata.metadata().as_ref().expect("metadata").iter().collect();
    let golden: Vec<_> = cases.into_iter().map(|(name, options)| read(&tensors, name, options)).collect();
    assert!(golden.len() >= 100, "{} golden cases in {}", golden.len(), path.display());
    golden
}

fn read(tensors: &SafeTensors<'_>, name: &str, options: &str) -> Golden {
    let option = |key: &str| {
        let value = options.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name} has no {key}"))
    };
    let find = |role: &str, key: &str| {
        let view = tensors.tensor(&format!("{name}/{role}/{key}")).ok()?;
        Some(Tensor { shape: view.shape().to_vec(), values: values(&view) })
    };
    let missing = |key: &str| panic!("{name} has no {key}");
    let values_of = |role: &str, key: &str| find(role, key).map(|tensor| tensor.values);
    Golden {
        name: name.to_owned(),
        options: Options {
            method: option("method").parse().unwrap(),
            coefficients: option("coefficients").parse().unwrap(),
            bidirectional: Some(option("bidirectional") == "true"),
            dt_softplus: option("dt_softplus") == "true",
            ..Options::default()
        },
        inputs: Inputs::by_name(|key| Ok(find("in", key)), missing).unwrap(),
        output_gradients: OutputGradients::by_name(|key| Ok(find("in", key)), missing).unwrap(),
        outputs: Outputs::by_name(|key| Ok(values_of("out", key)), missing).unwrap(),
        gradients: Gradients::by_name(|key| Ok(values_of("grad", key)), missing).unwrap(),
    }
}

fn values(view: &TensorView<'_>) -> Vec<f64> {
    assert_eq!(view.dtype(), safetensors::Dtype::F64);
    decode(ElementType::F64, view.data())
}
