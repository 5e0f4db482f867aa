[
  inputs: ["{mix,.formatter}.exs", "{mix,lib,test,examples,bench}/**/*.{ex,exs}"],
  line_length: 115
]
