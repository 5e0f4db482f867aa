[
  inputs: ["{mix,.formatter}.exs", "{mix,lib,test,examples}/**/*.{ex,exs}"],
  line_length: 115
]
