#!/usr/bin/env bash
# Makes the peers' own environment: environment.sh FOLDER. Building llama.cpp takes about ten minutes on two cores.
set -euo pipefail
folder="$1"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet torch==2.13.0 safetensors gguf diskcache jinja2 psutil numpy
# Flags by hand: asked to look for itself, the build takes AMX on virtual machines that fault at it.
flags=(-DGGML_NATIVE=OFF)
for feature in avx:AVX avx2:AVX2 fma:FMA f16c:F16C bmi2:BMI2 avx512f:AVX512 avx512_vnni:AVX512_VNNI \
    avx512_vbmi:AVX512_VBMI avx512_bf16:AVX512_BF16; do
    if grep -qw -m1 "${feature%%:*}" /proc/cpuinfo; then flags+=("-DGGML_${feature##*:}=ON"); fi
done
CMAKE_ARGS="${flags[*]}" "$folder/bin/pip" install --quiet --no-deps --no-binary :all: llama-cpp-python
# The exporter wants torchvision, which wants another torch, and uses neither here.
"$folder/bin/pip" install --quiet openvino openvino-genai openvino-tokenizers "transformers<5.6" "huggingface_hub<1.22"
"$folder/bin/pip" install --quiet --no-deps optimum optimum-intel nncf
"$folder/bin/pip" install --quiet onnx pydot natsort scikit-learn tabulate rich jsonschema networkx ninja pandas setuptools
touch "$folder/.ready"
