// Memory of a CUDA device for the backend of `device_backend.exs`, as three functions of the BEAM. It is never freed.
#include <dlfcn.h>
#include <erl_nif.h>

typedef int (*Driver)();
static void *context;
static Driver driver(const char *name) { return (Driver)dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }
static int call(int result) { return result == 0; }

static int begin(void) {
  int device;
  return call(driver("cuInit")(0)) && call(driver("cuDeviceGet")(&device, 0)) &&
         (context || call(driver("cuDevicePrimaryCtxRetain")(&context, device))) &&
         call(driver("cuCtxSetCurrent")(context));
}

static ERL_NIF_TERM allocate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 bytes, address;
  if (!enif_get_uint64(env, argv[0], &bytes) || !begin() || !call(driver("cuMemAlloc_v2")(&address, bytes)))
    return enif_make_badarg(env);
  return enif_make_uint64(env, address);
}

static ERL_NIF_TERM store(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 address;
  ErlNifBinary from;
  if (!enif_get_uint64(env, argv[0], &address) || !enif_inspect_binary(env, argv[1], &from) || !begin() ||
      !call(driver("cuMemcpyHtoD_v2")(address, from.data, from.size)))
    return enif_make_badarg(env);
  return argv[0];
}

static ERL_NIF_TERM fetch(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  ErlNifUInt64 address, bytes;
  ERL_NIF_TERM result;
  if (!enif_get_uint64(env, argv[0], &address) || !enif_get_uint64(env, argv[1], &bytes) || !begin() ||
      !call(driver("cuMemcpyDtoH_v2")(enif_make_new_binary(env, bytes, &result), address, bytes)))
    return enif_make_badarg(env);
  return result;
}

static ErlNifFunc functions[] = {{"allocate", 1, allocate}, {"store", 2, store}, {"fetch", 2, fetch}};

ERL_NIF_INIT(Elixir.ExPhil.Native.DeviceMemory, functions, NULL, NULL, NULL, NULL)
